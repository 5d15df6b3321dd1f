"""What is planned: operators, devices, tilings and partitions."""

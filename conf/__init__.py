"""The hydra configuration of `bow train`; installed as bow.conf."""

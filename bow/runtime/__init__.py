"""The local runtime: step graphs on executors, by a schedule. Import its modules directly; none is imported here."""

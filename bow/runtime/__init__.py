"""The local runtime: step graphs on executors, by a schedule. Import its modules: a training may need none of them."""

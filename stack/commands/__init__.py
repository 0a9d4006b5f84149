"""The subcommands of `stackc`, a few to a file. Each file has `add(subparsers)`."""

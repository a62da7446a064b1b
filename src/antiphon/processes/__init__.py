"""The processes of a server and their communication: the supervisor, the coordinator, frames, the sandbox."""

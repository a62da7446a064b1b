"""The one owner of limits and spool on a node with several HTTP processes, in a process of its own."""

"""One engine in a process of its own: the frames, the host process, and its client in the HTTP process.

  HTTP process                         AF_UNIX                engine host
  HostTokenEngine (client) ── Channel ── frames ── Channel ── Session (server) ── any TokenEngine

`control` is the pipe between the supervisor and the processes it starts; `runtime` is the directory of the
sockets.
"""

"""One engine in a process of its own: the frames, the host process, and its client in the HTTP process.

  HTTP process                         AF_UNIX                engine host
  HostTokenEngine (client) ── Channel ── frames ── Channel ── Session (server) ── any TokenEngine

`control` has the pipes between the supervisor and the processes it starts, and the directory of the sockets.
"""

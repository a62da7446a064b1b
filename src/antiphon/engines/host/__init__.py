"""One engine in a process of its own: the frames between, the process itself, and the client that stands in
for it.

    gateway                              AF_UNIX                engine host
    HostTokenEngine (client) ── Channel ── frames ── Channel ── Session (server) ── any TokenEngine

`control` is the other line, between the supervisor and the processes it starts; `runtime` is the directory of
the sockets.
"""

"""The replicas of a model on the machines of a Ray cluster, behind the interface of one token engine.

  HTTP process       AF_UNIX      Ray driver                gRPC       replica, a Ray actor
  HostTokenEngine ── frames ── HostServer ── RayTokenEngine ── frames ── EngineReplica ── any TokenEngine

Each model has one driver: an engine host whose engine computes on other machines. It deploys the
model as an application of Ray Serve, and chooses the replica of each sequence (`replica_table`). The node
process (`node`) starts or joins the cluster on this machine; drivers connect through it. No other process
imports Ray.
"""

"""Kubernetes on this machine, as far as Spark uses it: an API server, its rights, and one node.

There is no cluster without a daemon of containers, and no machine of the tests has one. What stands
for it here is read by the same clients (Spark's fabric8, ``kubectl``'s REST paths), refuses what
the roles do not allow, and runs the pods in namespaces of Linux: a host name, process ids, mounts
and an address of their own.

- :mod:`.objects`: what is stored, and who watches it
- :mod:`.rights`: who may do what (RBAC)
- :mod:`.api`: the REST paths
- :mod:`.pods`: what a pod asks of its node
- :mod:`.kubelet`: the node
"""

from tests.cluster.k8s.cluster import FakeKubernetes

__all__ = ["FakeKubernetes"]

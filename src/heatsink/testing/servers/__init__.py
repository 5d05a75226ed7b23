"""Private servers for tests and demos, without root: they end with the process that starts them."""

from heatsink.stores.embedded import MissingServer

from .redis import RedisServer
from .redis_cluster import RedisCluster
from .redis_sentinel import RedisSentinel

__all__ = ["MissingServer", "RedisCluster", "RedisSentinel", "RedisServer"]

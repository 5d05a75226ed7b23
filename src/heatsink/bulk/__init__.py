"""Bulk actions: millions of items on partitioned queues, fair, rate-limited and crash-safe."""

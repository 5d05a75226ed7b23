"""What the nursery does before it forks: boto3 reads its description of DynamoDB once for all."""

from __future__ import annotations

from .frozen import a_client

a_client("http://127.0.0.1:9").close()  # sends nothing

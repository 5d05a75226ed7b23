"""Heatsink for an existing DynamoDB table: `attach` for existing code, and boto3's Table."""

from .attach import Attachment, attach
from .table import Table

__all__ = ["Attachment", "Table", "attach"]

"""Heatsink under a DynamoDB table that exists already, behind the calls of boto3's Table."""

from .table import Table

__all__ = ["Table"]

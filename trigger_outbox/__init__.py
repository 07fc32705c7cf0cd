"""The Delta log of a topic: create, append, follow, read, compact, trim, verify. The only importer of deltalake and obstore."""

from trigger_outbox.append import Appended, Batch
from trigger_outbox.encode import Rows
from trigger_outbox.lifecycle import Description
from trigger_outbox.outbox import Outbox, topic_names
from trigger_outbox.verify import Audit

__all__ = ["Appended", "Audit", "Batch", "Description", "Outbox", "Rows", "topic_names"]

"""What people look at: timelines as text. Nothing here decides, and nothing here imports torch."""

from weft.report.lanes import lanes

__all__ = ["lanes"]

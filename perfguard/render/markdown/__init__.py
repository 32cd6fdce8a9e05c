"""The pull request's comment and the run's summary, as GitHub-flavoured Markdown."""

from perfguard.render.markdown.comment import COMMENT_BYTES, render_markdown, render_resolved, visible_lines

__all__ = ["COMMENT_BYTES", "render_markdown", "render_resolved", "visible_lines"]

"""The pull request's comment and the run's summary, as GitHub-flavoured Markdown."""

from perfguard.render.markdown.comment import COMMENT_BYTES, markdown_sizes, render_markdown, render_resolved

__all__ = ["COMMENT_BYTES", "markdown_sizes", "render_markdown", "render_resolved"]

"""The one renderer: what a row looks like as HTML, streamed, stored or reloaded."""

# SPDX-License-Identifier: Apache-2.0
"""What mkdocs is told beside its configuration: links to files of the tree that are no pages become the names of these files."""
import os
import re

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown, page, config, **_):
    docs = config["docs_dir"]
    folder = os.path.join(docs, os.path.dirname(page.file.src_path))

    def link(m):
        path = os.path.normpath(os.path.join(folder, m[2]))
        if "://" in m[2] or path.startswith(docs + os.sep):
            return m[0]
        name = os.path.relpath(path, os.path.dirname(docs))
        return f"`{name}`" if os.path.basename(name) == m[1].strip("`").split("/")[-1] else f"{m[1]} (`{name}`)"
    return LINK.sub(link, markdown)

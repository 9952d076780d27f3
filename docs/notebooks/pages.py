"""Makes a page of the site from every notebook, which is run for it: what a page shows, its code has just given.

A hook of MkDocs, so that links are checked as on every other page and nothing is loaded from elsewhere.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

PLOTLY = "application/vnd.plotly.v1+json"


def on_files(files: Any, config: Any) -> None:
    """Add the pages, and the script that draws their figures."""
    from mkdocs.structure.files import File
    from plotly.offline import get_plotlyjs

    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        text = as_markdown(executed(Path(file.abs_src_path)), Path(file.src_uri).name)
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    files.append(File.generated(config, "notebooks/plotly.js", content=get_plotlyjs()))


def executed(path: Path) -> dict[str, Any]:
    """The notebook with its outputs, from a kernel of its own."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


def as_markdown(notebook: dict[str, Any], name: str) -> str:
    """Text as it is, code in fences, and under it what it gave; `name` is the notebook's file."""
    parts = ["<script src='plotly.js'></script>"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        parts += filter(None, (_output(each, f"figure-{len(parts)}") for each in cell.get("outputs", ())))
    parts.insert(2, f"To run it yourself: [{name}]({name}).")  # below the title and what it is about
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any], key: str) -> str:
    """One output of a cell; a progress bar, which has ended, and warnings leave none."""
    data = output.get("data", {})
    if PLOTLY in data:
        figure = json.dumps(data[PLOTLY]).replace("<", "\\u003c")  # which alone could end a script
        height = data[PLOTLY]["layout"]["height"]
        return f"<div id='{key}' style='height:{height}px'></div>\n<script>Plotly.newPlot('{key}', {figure})</script>"
    if "text/html" in data and output["output_type"] == "execute_result":
        plain = "".join(data["text/html"]).replace("\n", " ").replace(' border="1" class="dataframe"', "")
        return f"<div>{plain}</div>"  # the theme lets a table without a class scroll on a phone
    text = "".join(output["text"] if output.get("name") == "stdout" else data.get("text/plain", ""))
    wrapped = f"<pre style='white-space:pre-wrap'>{escape(text.strip())}</pre>"  # a verdict's lines are long
    return wrapped if text.strip() and "widget" not in str(list(data)) else ""

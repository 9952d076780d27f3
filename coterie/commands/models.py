"""`coterie predict` and `coterie export`: a silo's model in use."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import BadInput, refused

File = Annotated[Path, typer.Argument(metavar="MODEL", help="a model that a run wrote: deploy/SILO/model.safetensors")]
Code = Annotated[
    str | None, typer.Option("--model", help="the nn.Module it was trained as, package.module:Class, if your own")
]


def predict(
    path: File,
    data: Annotated[Path, typer.Option(help="a CSV or Parquet table, an .npz with x, or a folder of pictures")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; none: the terminal")] = None,
    code: Code = None,
    incumbent: Annotated[
        Path | None, typer.Option(help="the silo's own model that is mixed in: an ONNX file; a column is found by name")
    ] = None,
) -> None:
    """Predict with a silo's model.

    Rows are encoded just as in training. The answer is a CSV table in the order of the rows, with a column `prediction`
    and, for classes, the probability of each.
    """
    from coterie.models.code import load_code
    from coterie.personal.file import load_model
    from coterie.personal.inputs import read_samples

    if out is not None and out.exists():
        raise BadInput(f"--out {out}: exists already and is not overwritten; give another file or remove it")
    model = load_model(path, None if code is None else load_code(code), incumbent)
    names, samples = read_samples(data, model.schema.resize)
    table = model.predict(samples)
    table.insert(0, names.name, names.to_numpy())
    text = table.to_csv(index=False)
    if out is None:
        typer.echo(text, nl=False)
        return
    with refused(f"--out {out}", "give a file that can be written"):
        out.write_text(text, "utf-8")


def export(
    path: File,
    onnx: Annotated[Path | None, typer.Option(help="the ONNX file to write")] = None,
    safetensors: Annotated[
        Path | None, typer.Option(help="the .safetensors file to write: whole, with adapters merged into the weights")
    ] = None,
    adapter: Annotated[Path | None, typer.Option(help="the folder to write the adapter to, as PEFT reads it")] = None,
    incumbent: Annotated[
        Path | None, typer.Option(help="the silo's own model as an ONNX file, where the model mixes that in")
    ] = None,
    code: Code = None,
) -> None:
    """Write a silo's model as ONNX, as a file, or as an adapter.

    The input of ONNX is what rows are encoded to, its output the probabilities of classes, or numbers in the label's
    own unit. How rows are encoded is in the file's metadata, as JSON.
    """
    from coterie.models.code import load_code
    from coterie.personal.adapter import write_adapter, write_merged
    from coterie.personal.file import load_model
    from coterie.personal.onnx_graph import write_onnx

    if not (onnx or safetensors or adapter):
        raise BadInput("export: nothing to write; give --onnx FILE, --safetensors FILE or --adapter FOLDER")
    model = load_model(path, None if code is None else load_code(code), incumbent)
    for write, to in ((write_onnx, onnx), (write_merged, safetensors), (write_adapter, adapter)):
        if to is not None:
            write(model, to)
            typer.echo(f"Wrote {to}")

"""Writes dray_pb2.py and dray_pb2.pyi from the .proto: `python -m dray.serve.rpc.generate FOLDER`.

Run it with an old grpcio-tools (1.62): what that writes is read by every protobuf from 4.25 on, while newer
generators write code that refuses older libraries. A test compares what is stored with the .proto.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

PROTOS: Final = Path(__file__).parents[1] / "proto"
FILE: Final = "dray/v1/dray.proto"


def generate(*outputs: str) -> None:
    """Call protoc; `outputs` are options such as `--python_out=FOLDER`."""
    tools = import_module("grpc_tools")  # only who generates needs it
    include = Path(str(tools.__file__)).parent / "_proto"
    protoc = import_module("grpc_tools.protoc")
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{include}", *outputs, FILE]) != 0:
        raise SystemExit(1)


def main(folder: Path) -> None:
    """Write both files into this folder."""
    generate(f"--python_out={folder}", f"--pyi_out={folder}")
    for name in ("dray_pb2.py", "dray_pb2.pyi"):
        (folder / "dray" / "v1" / name).replace(folder / name)
    (folder / "dray" / "v1").rmdir()
    (folder / "dray").rmdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

"""Records as Arrow tables: lists of numbers go from numpy to Arrow without a Python object per token."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trainer.export.format import Record


def table(records: Sequence[Record], schema: pa.Schema) -> pa.Table:
    arrays = [_column(field, [record.fields[field.name] for record in records]) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(field: pa.Field, values: list[object]) -> pa.Array:
    kind = field.type
    if not pa.types.is_list(kind) or not all(isinstance(v, np.ndarray) for v in values):
        return pa.array(values, type=kind)
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])])  # type: ignore[arg-type]
    joined: np.ndarray = np.concatenate(values)  # type: ignore[arg-type]
    inner = pa.array(joined, type=kind.value_type, from_pandas=True)  # NaN becomes null
    return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), inner, type=kind)

"""What the API takes and gives of datasets and their uploads."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.datasets.building import ASK, DROP, KEEP, BuildOptions
from portal.datasets.formats import FORMATS
from portal.datasets.mapping import read_mapping
from portal.datasets.models import DatasetUpload
from portal.datasets.receiving import file_size

REPEATS = [KEEP, DROP, ASK]
FORMAT_HELP = "Left out: found out from the content."
NAME_HELP = "A name that exists gets a new version."


class BuildInput(serializers.Serializer[Any]):
    """How rows are made of a file; ``to_options`` of it."""

    mapping = serializers.JSONField(
        default=None,
        help_text="Columns by role: {'prompt' or 'messages', 'answer', 'answer_after', 'split', 'metadata': [...]}. "
        "Left out: the columns have these names. A dot leads into an object; 'answer_after': '####' takes what follows "
        "the last of these.",
    )
    held_out_fraction = serializers.FloatField(default=0.1, min_value=0, help_text="Of the rows without a split.")
    held_out_rows = serializers.IntegerField(
        default=None, allow_null=True, min_value=0, help_text="A number of rows instead of a fraction."
    )
    seed = serializers.IntegerField(default=0, help_text="Of the split.")
    skip_bad_rows = serializers.BooleanField(default=False, help_text="Store the good rows, leave out the faulty.")
    duplicates = serializers.ChoiceField(
        REPEATS, default=KEEP, help_text="Exact repeats of a row. 'ask' refuses with 409 and says how many."
    )
    overlap = serializers.ChoiceField(
        REPEATS, default=KEEP, help_text="Training rows whose prompt is held out too: 'drop' drops them from training."
    )


def to_options(data: dict[str, Any]) -> BuildOptions:
    """Takes its fields out of ``data``. Raises InvalidInput for a faulty mapping."""
    given = {name: data.pop(name) for name in map(str, BuildInput().fields)}
    mapping = given.pop("mapping")
    return BuildOptions(mapping=None if mapping is None else read_mapping(mapping), **given)


class DatasetInput(BuildInput):
    name = serializers.CharField(max_length=100, help_text=NAME_HELP)
    format = serializers.ChoiceField(list(FORMATS), default="", allow_blank=True, help_text=FORMAT_HELP)


class DatasetForm(DatasetInput):
    file = serializers.FileField(help_text="JSON lines, CSV or Parquet; gzip is unpacked.", allow_empty_file=True)


class DatasetChange(serializers.Serializer[Any]):
    archived = serializers.BooleanField(help_text="Archived datasets are out of the lists; jobs keep them.")


class UploadInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, help_text=NAME_HELP)
    file_name = serializers.CharField(max_length=200, default="", allow_blank=True)
    format = serializers.ChoiceField(list(FORMATS), default="", allow_blank=True, help_text=FORMAT_HELP)
    size_bytes = serializers.IntegerField(
        default=None, allow_null=True, min_value=0, help_text="Where known: refused at once above the tenant's limit."
    )


class PieceQuery(serializers.Serializer[Any]):
    offset = serializers.IntegerField(min_value=0, help_text="Where the piece begins: what has been received so far.")
    part = serializers.ChoiceField(
        ["data", "held_out"], default="data", help_text="'held_out': a file of its own with the rows to hold out."
    )


class OffsetOutput(serializers.Serializer[Any]):
    offset = serializers.IntegerField(help_text="Bytes received of 'data': where the next piece begins.")
    held_out_offset = serializers.IntegerField(help_text="The same of 'held_out'.")


class UploadOutput(serializers.ModelSerializer[DatasetUpload]):
    offset = serializers.SerializerMethodField(help_text="Bytes received: where the next piece begins.")
    held_out_offset = serializers.SerializerMethodField()
    version = serializers.UUIDField(source="version_id", allow_null=True, help_text="What has become of it.")
    report = serializers.DictField(help_text="What the last check found: errors (the first 100), total, rows.")

    class Meta:
        model = DatasetUpload
        fields = [
            "id",
            "name",
            "file_name",
            "format",
            "complete",
            "offset",
            "held_out_offset",
            "report",
            "version",
            "created_at",
            "expires_at",
        ]

    def get_offset(self, upload: DatasetUpload) -> int:
        return file_size(upload.data_path)

    def get_held_out_offset(self, upload: DatasetUpload) -> int:
        return file_size(upload.held_out_path)


class PreviewInput(serializers.Serializer[Any]):
    mapping = serializers.JSONField(default=None, help_text="Left out: the guessed one.")
    limit = serializers.IntegerField(default=10, min_value=1, max_value=100)


class ColumnOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    example = serializers.CharField(allow_blank=True)


class PreviewRowOutput(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    row = serializers.DictField(allow_null=True, help_text="As it would be stored.")
    faults = serializers.ListField(child=serializers.CharField())


class PreviewOutput(serializers.Serializer[Any]):
    columns = ColumnOutput(many=True)
    mapping = serializers.DictField(allow_null=True, help_text="The one used; null where none could be guessed.")
    rows = PreviewRowOutput(many=True)
    problem = serializers.CharField(allow_blank=True, help_text="What stops the reading of the file.")


class RowsQuery(serializers.Serializer[Any]):
    start = serializers.IntegerField(default=0, min_value=0, max_value=10**9)
    limit = serializers.IntegerField(default=100, min_value=1, max_value=1000)


class RowsOutput(serializers.Serializer[Any]):
    rows = serializers.ListField(child=serializers.DictField(), help_text="engine.spec.DatasetRow.")


class LengthsQuery(serializers.Serializer[Any]):
    base_model = serializers.CharField(
        max_length=64, default="", allow_blank=True, help_text="Left out: the first on offer."
    )


class BinOutput(serializers.Serializer[Any]):
    start = serializers.IntegerField(help_text="Fewest tokens.")
    end = serializers.IntegerField(help_text="Not included.")
    rows = serializers.IntegerField()


class LengthsOutput(serializers.Serializer[Any]):
    context_length = serializers.IntegerField()
    exact = serializers.BooleanField(help_text="Counted by the base model's tokenizer, not by characters.")
    sampled_rows = serializers.IntegerField()
    mean = serializers.FloatField()
    longest = serializers.IntegerField()
    over = serializers.IntegerField(help_text="Sampled rows whose prompt does not fit into the context.")
    bins = BinOutput(many=True)

"""The upload form."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from django import forms

EXAMPLE = (
    '{"prompt": "What is 17 + 25?", "answer": "42"}\n'
    '{"messages": [{"role": "user", "content": "What is 8 * 7?"}], "answer": "56"}'
)
MAX_PASTED = 1_000_000
"""Characters; more is better uploaded as a file."""
MAX_FIXABLE = 200_000
"""Bytes of a faulty file that is put into the text field, to be corrected there."""


class UploadForm(forms.Form):
    """A file or pasted rows, and how much of it is held out."""

    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="An existing name adds a new version; earlier versions stay as they are.",
        error_messages={"required": "Give the dataset a name."},
        widget=forms.TextInput(attrs={"placeholder": "sums", "autocomplete": "off"}),
    )
    source = forms.ChoiceField(
        choices=[("file", "Upload a file"), ("paste", "Paste rows")], initial="file", widget=forms.RadioSelect
    )
    file = forms.FileField(
        required=False,
        allow_empty_file=True,  # the service says what is wrong with it
        label="File of JSON lines",
        widget=forms.FileInput(attrs={"accept": ".jsonl,.ndjson,.json,.txt,application/jsonl"}),
    )
    text = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_PASTED,
        label="Rows",
        help_text="One JSON object a line.",
        widget=forms.Textarea(
            attrs={"rows": 12, "class": "mono", "spellcheck": "false", "wrap": "off", "placeholder": EXAMPLE}
        ),
    )
    held_out_percent = forms.IntegerField(
        min_value=0,
        max_value=50,
        initial=10,
        label="Held out",
        help_text="Share of the rows training never sees. The job measures its progress on them; "
        "with 0 there is nothing to measure. Rows that name their own split keep it.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("source") == "paste":
            if "text" not in self.errors and not cleaned.get("text", "").strip():
                self.add_error("text", "Paste at least one row.")
        elif cleaned.get("file") is None and "file" not in self.errors:
            self.add_error("file", "Choose a file.")
        return cleaned

    def stream(self) -> BinaryIO:
        """What was sent, as bytes."""
        if self.cleaned_data["source"] == "paste":
            return io.BytesIO(self.cleaned_data["text"].encode())
        return self.cleaned_data["file"].file

    def for_correction(self) -> UploadForm:
        """The same form with a small faulty file opened in the text field, so that it can be corrected on the spot."""
        upload = self.cleaned_data.get("file")
        if self.cleaned_data["source"] == "paste" or upload is None or upload.size > MAX_FIXABLE:
            return self
        upload.seek(0)
        content = upload.read()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return self
        return UploadForm({**self.data.dict(), "source": "paste", "text": text})  # type: ignore[attr-defined]

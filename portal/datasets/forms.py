"""The forms of an upload: what is sent, then how rows are made of it."""

from __future__ import annotations

import io
from typing import Any

from django import forms

from portal.datasets.building import ASK, DROP, KEEP, BuildOptions
from portal.datasets.mapping import Column, FieldMapping
from portal.datasets.preview import Preview
from portal.datasets.receiving import Readable

EXAMPLE = (
    '{"prompt": "What is 17 + 25?", "answer": "42"}\n'
    '{"messages": [{"role": "user", "content": "What is 8 * 7?"}], "answer": "56"}'
)
MAX_PASTED = 1_000_000
"""Characters; more is better uploaded as a file."""
ENDINGS = ".jsonl,.ndjson,.json,.txt,.csv,.tsv,.parquet,.gz"
BOTH = "prompt+messages"
"""The choice of a file whose rows have either."""


class UploadForm(forms.Form):
    """A file or pasted rows."""

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
    file = forms.FileField(required=False, allow_empty_file=True, label="File")
    held_out_file = forms.FileField(
        required=False,
        label="Held-out file",
        help_text="A file of its own with the rows training never sees, in the same columns.",
        widget=forms.FileInput(attrs={"accept": ENDINGS}),
    )
    text = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_PASTED,
        label="Rows",
        help_text="One JSON object a line, or CSV with a header.",
        widget=forms.Textarea(
            attrs={"rows": 12, "class": "mono", "spellcheck": "false", "wrap": "off", "placeholder": EXAMPLE}
        ),
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("source") == "paste":
            if "text" not in self.errors and not cleaned.get("text", "").strip():
                self.add_error("text", "Paste at least one row.")
        elif cleaned.get("file") is None and "file" not in self.errors:
            self.add_error("file", "Choose a file.")
        return cleaned

    def stream(self) -> tuple[Readable, str, int]:
        """What was sent, its file name and its size in bytes."""
        if self.cleaned_data["source"] == "paste":
            content = self.cleaned_data["text"].encode("utf-8", "replace")
            return io.BytesIO(content), "", len(content)
        file = self.cleaned_data["file"]
        return file, file.name, file.size


class StoreForm(forms.Form):
    """Which column is what, what is held out, and what to do with rows that are bad or repeat others."""

    prompt = forms.ChoiceField(
        label="Prompt",
        help_text="The user's message, or a chat of messages.",
        error_messages={"required": "Choose the column the prompt is in."},
    )
    answer = forms.ChoiceField(label="Answer", required=False, help_text="What rewards compare a completion with.")
    answer_after = forms.CharField(
        label="Only what follows",
        required=False,
        max_length=50,
        help_text="The last of these in the answer, such as ####. Empty: the whole answer.",
        widget=forms.TextInput(attrs={"class": "mono", "autocomplete": "off", "placeholder": "####"}),
    )
    split = forms.ChoiceField(
        label="Split", required=False, help_text="A column that says train or held_out (test, validation, dev)."
    )
    metadata = forms.MultipleChoiceField(
        label="Metadata", required=False, widget=forms.CheckboxSelectMultiple, help_text="Kept with each row."
    )
    hold_out = forms.ChoiceField(
        choices=[("percent", "A share of the rows"), ("rows", "A number of rows")],
        initial="percent",
        label="Held out",
        widget=forms.RadioSelect,
    )
    held_out_percent = forms.IntegerField(min_value=0, max_value=50, initial=10, label="Share", required=False)
    held_out_rows = forms.IntegerField(min_value=0, initial=100, label="Rows", required=False)
    seed = forms.IntegerField(
        initial=0, label="Seed", help_text="The same seed holds out the same rows.", required=False
    )
    skip_bad_rows = forms.BooleanField(label="Leave the bad rows out and store the good ones", required=False)
    duplicates = forms.ChoiceField(
        choices=[(KEEP, "Keep them"), (DROP, "Drop them")], required=False, widget=forms.RadioSelect
    )
    overlap = forms.ChoiceField(
        choices=[(DROP, "Drop them from training"), (KEEP, "Keep them")], required=False, widget=forms.RadioSelect
    )

    def __init__(self, *args: Any, columns: list[Column], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.columns = {column.name: column for column in columns}
        names = [(name, name) for name in self.columns]
        has_both = {"prompt", "messages"} <= set(self.columns)
        either = [(BOTH, "prompt or messages, whichever a row has")] if has_both else []
        self._choose("prompt", [("", "Choose a column"), *either, *names])
        self._choose("answer", [("", "None"), *names])
        self._choose("split", [("", "None"), *names])
        # Not those inside an object that is a column itself.
        self._choose("metadata", [pair for pair in names if pair[0].rpartition(".")[0] not in self.columns])

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        self.fields[name].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        field = "held_out_percent" if cleaned.get("hold_out") == "percent" else "held_out_rows"
        if field not in self.errors and cleaned.get(field) is None:
            self.add_error(field, "Say how many, 0 for none.")
        return cleaned

    def mapping(self) -> FieldMapping:
        """Of a valid form, or of one whose ``prompt`` is."""
        data = self.cleaned_data
        prompt = data["prompt"]
        chat = prompt != BOTH and self.columns[prompt].is_chat
        used = {"prompt", "messages"} if prompt == BOTH else {prompt}
        used |= {data.get("answer"), data.get("split")}
        offered = {name for name, _ in self.fields["metadata"].choices} - used  # type: ignore[attr-defined]
        chosen = [name for name in data.get("metadata") or [] if name not in used]
        return FieldMapping(
            prompt="prompt" if prompt == BOTH else "" if chat else prompt,
            messages="messages" if prompt == BOTH else prompt if chat else "",
            answer=data.get("answer") or "",
            answer_after=data.get("answer_after") or "",
            split=data.get("split") or "",
            metadata=None if set(chosen) == offered else chosen,
        )

    def to_options(self) -> BuildOptions:
        data = self.cleaned_data
        by_rows = data["hold_out"] == "rows"
        return BuildOptions(
            mapping=self.mapping(),
            held_out_fraction=(data["held_out_percent"] or 0) / 100,
            held_out_rows=data["held_out_rows"] if by_rows else None,
            seed=data["seed"] or 0,
            skip_bad_rows=data["skip_bad_rows"],
            duplicates=data["duplicates"] or ASK,
            overlap=data["overlap"] or ASK,
        )


def initial_choices(preview: Preview) -> dict[str, Any]:
    """The guess, as the form's values."""
    mapping = preview.mapping
    names = [column.name for column in preview.columns]
    if mapping is None:
        return {"metadata": names}
    return {
        "prompt": BOTH if mapping.prompt and mapping.messages else mapping.prompt or mapping.messages,
        "answer": mapping.answer,
        "answer_after": mapping.answer_after,
        "split": mapping.split,
        "metadata": names,
    }

"""The filters of the audit page."""

from __future__ import annotations

from django import forms

from portal.audit.selectors import AuditFilter


class AuditFilterForm(forms.Form):
    """All optional; dates are UTC days."""

    actor = forms.CharField(required=False, max_length=150, label="Who")
    action = forms.ChoiceField(required=False, label="What")
    target = forms.CharField(
        required=False,
        max_length=200,
        label="Object",
        widget=forms.TextInput(attrs={"placeholder": "Name or id"}),
    )
    since = forms.DateField(required=False, label="From", widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(required=False, label="To", widget=forms.DateInput(attrs={"type": "date"}))

    def __init__(self, *args, actions: list[str], **kwargs) -> None:
        super().__init__(*args, **kwargs)
        nouns = sorted({action.partition(".")[0] for action in actions})
        groups = [
            (
                noun.replace("_", " ").capitalize(),
                [(noun, f"{noun}: all"), *[(a, a) for a in actions if a.startswith(f"{noun}.")]],
            )
            for noun in nouns
        ]
        self.fields["action"].choices = [("", "Everything"), *groups]  # type: ignore[attr-defined]

    def chosen(self) -> AuditFilter:
        """Faulty fields do not narrow; their errors are shown beside them."""
        data = getattr(self, "cleaned_data", {})
        return AuditFilter(**{name: data[name] for name in self.fields if data.get(name)})

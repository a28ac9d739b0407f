"""``manage.py engine``: what the engine page shows and does, for scripts."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.http import Http404

from portal.engine_room import services
from portal.engine_room.selectors import read_state
from portal.errors import ServiceError
from portal.pages.http import in_words


class Command(BaseCommand):
    help = "Show the engine's last report as JSON; drain it, have it take work again, or scale a pool."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        acts.add_parser("status", help="the last report as JSON; exits 1 where it is not about now")
        drain = acts.add_parser("drain", help="pause every job after its last committed step, take no new one")
        drain.add_argument("--reason", required=True, help="shown to tenants whose jobs wait")
        resume = acts.add_parser("resume", help="take work again")
        scale = acts.add_parser("scale", help="have so many rollout workers for a base model")
        scale.add_argument("base_model")
        scale.add_argument("rollout_workers", type=int)
        for act in (drain, resume, scale):
            act.add_argument("--user", required=True, help="who does it; needs the permission to operate the engine")

    def handle(self, *args: Any, act: str, **options: Any) -> None:
        if act == "status":
            self._status()
            return
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']}.")
        try:
            if act == "drain":
                services.drain_engine(user=user, reason=options["reason"])
            elif act == "resume":
                services.resume_engine(user=user)
            else:
                workers = options["rollout_workers"]
                services.scale_pool(user=user, base_model_id=options["base_model"], rollout_workers=workers)
        except ServiceError as error:
            raise CommandError(in_words(error)) from None
        except Http404 as error:
            raise CommandError(str(error)) from None
        self.stdout.write("Asked for; `manage.py engine status` shows when the engine goes by it.")

    def _status(self) -> None:
        state = read_state()
        if state.report is None:
            raise CommandError("The engine has never been heard from.")
        self.stdout.write(state.report.model_dump_json(indent=2))
        if not state.is_heard:
            raise CommandError(f"The engine has not been heard from since {state.heard_at:%Y-%m-%d %H:%M:%S} UTC.")

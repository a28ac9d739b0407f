"""From a job's spec to its environment, made once and shared by the job's episodes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import aiohttp

from engine.data import Dataset, DatasetError
from engine.environments.addresses import make_client
from engine.environments.files import TenantFiles
from engine.environments.openenv import OpenEnvEnvironment
from engine.environments.protocol import Environment, EpisodeError, Role
from engine.environments.reasoning_gym import generate
from engine.environments.remote import RemoteEnvironment
from engine.environments.tools.environment import ToolsEnvironment, instructions
from engine.environments.tools.python import RunsCode
from engine.spec import Environment as EnvironmentSpec
from engine.spec import HttpEnvironment, JobSpec, OpenEnv, ReasoningGym, Remote, Tools

KEPT = 64
"""Environments kept; one not used for longest goes first, and is made anew when needed again."""

ROLES: dict[type, frozenset[Role]] = {
    Tools: ToolsEnvironment.roles,
    Remote: RemoteEnvironment.roles,
    OpenEnv: OpenEnvEnvironment.roles,
}


def turn_roles(environment: EnvironmentSpec) -> frozenset[Role]:
    """Roles of the messages an environment puts between turns; none for a single turn."""
    return ROLES.get(type(environment), frozenset())


def prompt_instructions(environment: EnvironmentSpec) -> str:
    """What an environment adds to the system message of every prompt."""
    return instructions(environment) if isinstance(environment, Tools) else ""


def generate_rows(environment: EnvironmentSpec) -> Dataset:
    """The rows of an environment that makes its own; see ``engine.environments.reasoning_gym.generate``."""
    assert isinstance(environment, ReasoningGym), "a spec without a dataset was accepted"
    return generate(environment)


class Environments:
    """The environments of all jobs of a worker. Use it from one event loop."""

    def __init__(
        self, tenant_files: Path | None, allow_private: bool, sandbox: Callable[[], RunsCode] | None = None
    ) -> None:
        """``sandbox``: where tools run programs; see ``ToolsEnvironment.make``. None: there is no such tool here."""
        self._sandbox = sandbox or _no_sandbox
        self._tenant_files = tenant_files
        self._allow_private = allow_private
        self._made: OrderedDict[tuple[str, str], asyncio.Task[Environment]] = OrderedDict()
        self._client: aiohttp.ClientSession | None = None

    async def get(self, spec: JobSpec) -> Environment:
        """The environment of a job of several turns.

        Raises:
            DatasetError: its documents or its token are not there, or the token would go unencrypted.
        """
        key = (spec.tenant_id, spec.environment.model_dump_json())
        if key not in self._made:
            self._made[key] = asyncio.create_task(self._make(spec))
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        making = self._made[key]
        try:
            return await asyncio.shield(making)
        except Exception:
            self._made.pop(key, None)  # what is missing may be there the next time
            raise

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _make(self, spec: JobSpec) -> Environment:
        files = TenantFiles(self._tenant_files, spec.tenant_id)
        settings = spec.environment
        if isinstance(settings, Tools):
            return await ToolsEnvironment.make(settings, files, spec.tenant_id, self._sandbox)
        assert isinstance(settings, HttpEnvironment)
        name = settings.token_name

        def token() -> str:
            return files.token(name) if name else ""

        token()  # a missing one fails the job at once
        if name and settings.url.startswith("http:") and not self._allow_private:
            raise DatasetError("A token is sent over https only; change the environment's address.")
        if isinstance(settings, OpenEnv):
            return OpenEnvEnvironment(settings, self._allow_private, token)
        assert isinstance(settings, Remote)
        if self._client is None:
            self._client = make_client(self._allow_private)
        return RemoteEnvironment(settings, self._client, token)


def _no_sandbox() -> RunsCode:
    raise EpisodeError("the tool python cannot be used here: there is no sandbox")

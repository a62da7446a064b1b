"""The caller's organization in JamAI Base's form: its projects.

JamAI's projects belong to an organization, and its client needs all fields of it. This server is one
organization. It has no plans, credit or quotas like JamAI's, so these fields are null or 0.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.dialects.base import Endpoint
from antiphon.dialects.common.endpoints import declare_get
from antiphon.dialects.common.list_query import QUERY, ListQuery
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.http_types import Answer, Request, Response
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.jamai.lists import PAGING, JamaiPage, build_page, declare_paging, declare_parameter
from antiphon.dialects.jamai.tokens import _encode
from antiphon.dialects.jamai.wire_types import Health
from antiphon.dialects.services import Services
from antiphon.domain.tenancy import DEFAULT_PROJECT, Project
from antiphon.domain.values import replace
from antiphon.errors import NotFound, UnsupportedParameter

ORGANIZATION = OWNER
"""The id of the only organization."""

PROJECT_SORT_KEYS = ("id", "name", "created_at", "updated_at")

EPOCH = datetime.fromtimestamp(0, UTC)
"""The time of events that never happened."""

NO_AGENTS = "projects have no chat agents; leave it out"

Moment = Annotated[datetime, Meta(tz=True)]


class JamaiOrganization(Struct, frozen=True, kw_only=True):
    """This server as an organization. The usage fields are always 0: the admin API shows usage and limits."""

    meta: dict[str, Any] = field(default_factory=dict)
    id: str = ORGANIZATION
    name: str = ORGANIZATION
    currency: Literal["USD"] = "USD"
    timezone: None = None
    external_keys: dict[str, str] = field(default_factory=dict)
    created_at: Moment = EPOCH
    updated_at: Moment = EPOCH
    created_by: str = OWNER
    owner: str = OWNER
    stripe_id: None = None
    price_plan_id: None = None
    payment_state: Literal["NONE"] = "NONE"
    last_subscription_payment_at: None = None
    quota_reset_at: Moment = EPOCH
    credit: float = 0
    credit_grant: float = 0
    llm_tokens_quota_mtok: None = None
    llm_tokens_usage_mtok: float = 0
    embedding_tokens_quota_mtok: None = None
    embedding_tokens_usage_mtok: float = 0
    reranker_quota_ksearch: None = None
    reranker_usage_ksearch: float = 0
    db_quota_gib: None = None
    db_usage_gib: float = 0
    db_usage_updated_at: Moment = EPOCH
    file_quota_gib: None = None
    file_usage_gib: float = 0
    file_usage_updated_at: Moment = EPOCH
    egress_quota_gib: None = None
    egress_usage_gib: float = 0
    active: bool = True
    quotas: dict[str, dict[str, float | None]] = field(default_factory=dict)


class JamaiProject(Struct, frozen=True, kw_only=True):
    """One project."""

    meta: dict[str, Any] = field(default_factory=dict)
    id: str
    name: str
    description: str = ""
    """The operator's note."""
    tags: list[str] = field(default_factory=list)
    profile_picture_url: None = None
    cover_picture_url: None = None
    organization_id: str = ORGANIZATION
    organization: JamaiOrganization = JamaiOrganization()
    created_at: Moment
    updated_at: Moment
    created_by: str = OWNER
    owner: str = OWNER
    chat_agents: None = None


class JamaiProjectPage(JamaiPage, frozen=True, kw_only=True):
    """A part of the list of projects."""

    items: list[JamaiProject]


def declare_projects() -> tuple[Endpoint, Endpoint]:
    text = {"type": "string"}
    list_parameters = (
        declare_parameter("organization_id", text),
        declare_parameter("search_query", text),
        declare_parameter("list_chat_agents", {"enum": [False]}),
        *declare_paging(PROJECT_SORT_KEYS),
    )
    project_parameter = declare_parameter("project_id", text, required=True)
    path = f"{BASE}/v2/projects"
    return (
        declare_get(
            f"{path}/list", list_projects, "List projects", "projects", JamaiProjectPage, *list_parameters
        ),
        declare_get(path, show_project, "Show one project", "projects", JamaiProject, project_parameter),
    )


def declare_health() -> Endpoint:
    """Declares the public endpoint of the health."""
    health = declare_get(f"{BASE}/health", show_health, "Whether the process lives", "server", Health)
    return replace(health, right=None)


async def list_projects(request: Request, services: Services) -> Answer:
    query = ListQuery(request.query(), "organization_id", "search_query", "list_chat_agents", *PAGING)
    organization, search_text = query.get("organization_id"), query.get("search_query").casefold()
    if organization not in ("", ORGANIZATION):
        raise NotFound(
            f"there is no such organization; this server is the organization {ORGANIZATION}",
            param=f"{QUERY}.organization_id",
        )
    if query.read_switch("list_chat_agents", default=False):
        raise UnsupportedParameter(
            f"list_chat_agents is not supported: {NO_AGENTS}", param=f"{QUERY}.list_chat_agents"
        )
    projects = [build_project(project) for project in _list_projects(request, services)]
    matching_projects = [project for project in projects if search_text in project.name.casefold()]
    return Response(_encode(build_page(JamaiProjectPage, matching_projects, query, PROJECT_SORT_KEYS)))


async def show_project(request: Request, services: Services) -> Answer:
    project_id = ListQuery(request.query(), "project_id").require("project_id")
    for project in _list_projects(request, services):
        if project.id == project_id:
            return Response(_encode(build_project(project)))
    raise NotFound("there is no such project, or it is not yours", param=f"{QUERY}.project_id")


async def show_health(_request: Request, _services: Services) -> Answer:
    return Response(_encode(Health()))


def _list_projects(request: Request, services: Services) -> list[Project]:
    """Lists the projects of the caller. If keys are off, there is only the default project."""
    if services.tokens is None:
        return [Project(DEFAULT_PROJECT, DEFAULT_PROJECT, 0)]
    return [project for project in services.tokens.list_projects(request.actor) if project.archived is None]


def build_project(project: Project) -> JamaiProject:
    """Builds the entry of one project."""
    created = datetime.fromtimestamp(project.created, UTC)
    return JamaiProject(
        id=project.id,
        name=project.name,
        description=project.note,
        created_at=created,
        updated_at=created,
    )

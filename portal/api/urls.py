from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from portal.api.views.adapters import AdapterLinkView, AdapterView, JobAdaptersView
from portal.api.views.base import unknown_address
from portal.api.views.base_models import BaseModelsView
from portal.api.views.dataset_uploads import (
    DatasetUploadDataView,
    DatasetUploadErrorsView,
    DatasetUploadFinishView,
    DatasetUploadPreviewView,
    DatasetUploadsView,
    DatasetUploadView,
)
from portal.api.views.datasets import (
    DatasetFileView,
    DatasetLengthsView,
    DatasetRowsView,
    DatasetsView,
    DatasetVersionsView,
    DatasetView,
)
from portal.api.views.environments import (
    DocumentSetsView,
    DocumentSetView,
    EnvironmentTokensView,
    EnvironmentTokenView,
)
from portal.api.views.jobs import (
    CancelJobView,
    EstimateView,
    JobEventsView,
    JobsView,
    JobView,
    PauseJobView,
    ResumeJobView,
)
from portal.api.views.progress import JobMetricsView
from portal.api.views.rewards import (
    CancelRewardTrialView,
    RewardFunctionsView,
    RewardFunctionView,
    RewardTrialsView,
    RewardTrialView,
    ValidateRewardView,
)
from portal.api.views.rollouts import RolloutGroupView, RolloutsView
from portal.api.views.sample import SampleProjectView

docs = SpectacularSwaggerSplitView.as_view(url_name="api:schema", template_name="api/docs.html", throttle_classes=[])

app_name = "api"
urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(throttle_classes=[]), name="schema"),
    path(
        "docs/",
        SpectacularSwaggerSplitView.as_view(url_name="api:schema", template_name="api/docs.html", throttle_classes=[]),
        name="docs",
    ),
    path("base-models/", BaseModelsView.as_view(), name="base-models"),
    path("datasets/", DatasetsView.as_view(), name="datasets"),
    path("datasets/<uuid:dataset_id>/", DatasetView.as_view(), name="dataset"),
    path("datasets/<uuid:dataset_id>/versions/", DatasetVersionsView.as_view(), name="dataset-versions"),
    path("datasets/<uuid:dataset_id>/versions/<uuid:version_id>/rows/", DatasetRowsView.as_view(), name="dataset-rows"),
    path("datasets/<uuid:dataset_id>/versions/<uuid:version_id>/file/", DatasetFileView.as_view(), name="dataset-file"),
    path(
        "datasets/<uuid:dataset_id>/versions/<uuid:version_id>/lengths/",
        DatasetLengthsView.as_view(),
        name="dataset-lengths",
    ),
    path("dataset-uploads/", DatasetUploadsView.as_view(), name="dataset-uploads"),
    path("dataset-uploads/<uuid:upload_id>/", DatasetUploadView.as_view(), name="dataset-upload"),
    path("dataset-uploads/<uuid:upload_id>/data/", DatasetUploadDataView.as_view(), name="dataset-upload-data"),
    path(
        "dataset-uploads/<uuid:upload_id>/preview/", DatasetUploadPreviewView.as_view(), name="dataset-upload-preview"
    ),
    path("dataset-uploads/<uuid:upload_id>/finish/", DatasetUploadFinishView.as_view(), name="dataset-upload-finish"),
    path("dataset-uploads/<uuid:upload_id>/errors/", DatasetUploadErrorsView.as_view(), name="dataset-upload-errors"),
    path("reward-functions/", RewardFunctionsView.as_view(), name="reward-functions"),
    path("reward-functions/<uuid:reward_function_id>/", RewardFunctionView.as_view(), name="reward-function"),
    path("reward-functions/validate/", ValidateRewardView.as_view(), name="reward-validate"),
    path("reward-trials/", RewardTrialsView.as_view(), name="reward-trials"),
    path("reward-trials/<uuid:trial_id>/", RewardTrialView.as_view(), name="reward-trial"),
    path("reward-trials/<uuid:trial_id>/cancel/", CancelRewardTrialView.as_view(), name="reward-trial-cancel"),
    path("environments/documents/", DocumentSetsView.as_view(), name="document-sets"),
    path("environments/documents/<uuid:document_set_id>/", DocumentSetView.as_view(), name="document-set"),
    path("environments/tokens/", EnvironmentTokensView.as_view(), name="environment-tokens"),
    path("environments/tokens/<uuid:environment_token_id>/", EnvironmentTokenView.as_view(), name="environment-token"),
    path("sample-project/", SampleProjectView.as_view(), name="sample-project"),
    path("jobs/", JobsView.as_view(), name="jobs"),
    path("jobs/estimate/", EstimateView.as_view(), name="job-estimate"),
    path("jobs/<uuid:job_id>/", JobView.as_view(), name="job"),
    path("jobs/<uuid:job_id>/pause/", PauseJobView.as_view(), name="job-pause"),
    path("jobs/<uuid:job_id>/resume/", ResumeJobView.as_view(), name="job-resume"),
    path("jobs/<uuid:job_id>/cancel/", CancelJobView.as_view(), name="job-cancel"),
    path("jobs/<uuid:job_id>/events/", JobEventsView.as_view(), name="job-events"),
    path("jobs/<uuid:job_id>/metrics/", JobMetricsView.as_view(), name="job-metrics"),
    path("jobs/<uuid:job_id>/rollouts/", RolloutsView.as_view(), name="job-rollouts"),
    path("jobs/<uuid:job_id>/rollouts/<int:seq>/", RolloutGroupView.as_view(), name="job-rollout-group"),
    path("jobs/<uuid:job_id>/adapters/", JobAdaptersView.as_view(), name="job-adapters"),
    path("adapters/<uuid:adapter_id>/", AdapterView.as_view(), name="adapter"),
    path("adapters/<uuid:adapter_id>/link/", AdapterLinkView.as_view(), name="adapter-link"),
    path("", include("portal.api.tenant_urls")),
    path("<path:rest>", unknown_address),
]

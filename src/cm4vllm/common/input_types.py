"""The inputs that several settings classes read: the environment key and the type of each, once.

The flag, the help and the default of an input stand in the `inputs` of the recipe that describes it. The default is the
same in every class, `None` where the reader chooses the value (tests/common/test_inputs.py).
"""

from typing import Annotated, Literal

from cm4vllm.common.settings import Bounds, Key, Settings

# --- what is measured, by which rules ---

Benchmark = Annotated[str, Key("CM_MLPERF_MODEL")]
Round = Annotated[str, Key("CM_MLPERF_ROUND")]
Division = Annotated[str, Key("CM_MLPERF_SUBMISSION_DIVISION")]
Category = Annotated[str, Key("CM_MLPERF_SUBMISSION_SYSTEM_TYPE")]
Submitter = Annotated[str, Key("CM_MLPERF_SUBMITTER")]
ExecutionMode = Annotated[str, Key("CM_MLPERF_RUN_STYLE")]
RunMode = Annotated[str, Key("CM_MLPERF_LOADGEN_MODE")]
Scenario = Annotated[str, Key("CM_MLPERF_LOADGEN_SCENARIO")]
Device = Annotated[str, Key("CM_MLPERF_DEVICE")]
Machine = Annotated[str, Key("CM_MLPERF_MACHINE")]
GpuMemory = Annotated[float | None, Key("CM_VLLM_FIT_GPU_MEMORY"), Bounds()]
SpeechPackages = Annotated[str, Key("CM_SPEECH_PACKAGES")]
VisionPackages = Annotated[str, Key("CM_VISION_PACKAGES")]
TestQueryCount = Annotated[int | None, Key("CM_TEST_QUERY_COUNT"), Bounds(most=10**7)]
MaxTestDuration = Annotated[float | None, Key("CM_MLPERF_MAX_DURATION_TEST"), Bounds()]
NumWorkers = Annotated[int | None, Key("CM_MLPERF_INFERENCE_NUM_WORKERS"), Bounds()]
MaxInFlight = Annotated[int | None, Key("CM_MLPERF_LOADGEN_MAX_IN_FLIGHT"), Bounds()]
ShortenedWhy = Annotated[str, Key("CM_MLPERF_SHORTENED")]
Rehearse = Annotated[str, Key("CM_MLPERF_REHEARSE")]
Search = Annotated[str, Key("CM_VLLM_SEARCH")]
RehearsalMinutes = Annotated[float | None, Key("CM_MLPERF_REHEARSAL_MINUTES"), Bounds()]
SearchedOptions = Annotated[str, Key("CM_VLLM_SEARCHED_OPTIONS")]
SearchEvidence = Annotated[str, Key("CM_VLLM_SEARCH_EVIDENCE")]
SearchMinutes = Annotated[float | None, Key("CM_VLLM_SEARCH_MINUTES"), Bounds()]

# --- folders and records ---

ResultsDir = Annotated[str, Key("CM_MLPERF_RESULTS_DIR")]
JobOutputDir = Annotated[str, Key("OUTPUT_BASE_DIR")]
OutputDir = Annotated[str, Key("CM_MLPERF_OUTPUT_DIR")]
DatasetRecordPath = Annotated[str, Key("CM_DATASET_RECORD")]
PerformanceDatasetRecordPath = Annotated[str, Key("CM_PERFORMANCE_DATASET_RECORD")]
ComplianceDatasetRecordPath = Annotated[str, Key("CM_COMPLIANCE_DATASET_RECORD")]
ScoredDir = Annotated[str, Key("CM_MLPERF_ACCURACY_RESULTS_DIR")]
VerifiedDir = Annotated[str, Key("CM_MLPERF_COMPLIANCE_RESULTS_DIR")]
ModelRecordPath = Annotated[str, Key("CM_ML_MODEL_RECORD")]
ServerRecordPath = Annotated[str, Key("CM_VLLM_SERVER_RECORD")]

# --- power ---

Power = Annotated[Literal["no", "yes", "simulated"], Key("CM_MLPERF_POWER")]
PowerServer = Annotated[str, Key("CM_MLPERF_POWER_SERVER_ADDRESS")]
PowerSettings = Annotated[str, Key("CM_MLPERF_POWER_SETTINGS")]
PowerWiring = Annotated[str, Key("CM_MLPERF_POWER_WIRING")]
PowerSupplies = Annotated[str, Key("CM_MLPERF_POWER_SUPPLIES")]
PowerSource = Annotated[str, Key("CM_MLPERF_POWER_SOURCE")]
NtpServer = Annotated[str, Key("CM_MLPERF_POWER_NTP_SERVER")]
NumAnalyzers = Annotated[int, Key("CM_MLPERF_POWER_NUM_ANALYZERS")]
PowerPort = Annotated[int, Key("CM_MLPERF_POWER_SERVER_PORT")]

# --- jobs ---

Rerun = Annotated[str, Key("CM_RERUN")]
Attempts = Annotated[int, Key("CM_MLPERF_ATTEMPTS"), Bounds()]
Serve = Annotated[str, Key("CM_MLPERF_SERVE")]

# --- models and programs ---

ModelName = Annotated[str, Key("CM_ML_MODEL_NAME")]
ModelSource = Annotated[str, Key("CM_ML_MODEL_SOURCE")]
DatasetFile = Annotated[str, Key("CM_DATASET_FILE")]
DummyLayers = Annotated[int | None, Key("CM_ML_MODEL_DUMMY_LAYERS")]
VllmVariant = Annotated[str, Key("CM_VLLM_VARIANT")]
VllmVersion = Annotated[str, Key("CM_VLLM_WANTED_VERSION")]
VllmPython = Annotated[str, Key("CM_VLLM_PYTHON_BIN_WITH_PATH")]
SystemPython = Annotated[str, Key("CM_VLLM_SYSTEM_PYTHON")]
RayPython = Annotated[str, Key("CM_RAY_PYTHON_BIN_WITH_PATH")]
RayAddress = Annotated[str, Key("CM_RAY_ADDRESS")]

# --- programs, sources and names that the user gives ---

GraderSource = Annotated[str, Key("CM_MLPERF_GRADER_SOURCE_DIR")]
InferenceSource = Annotated[str, Key("CM_MLPERF_INFERENCE_SOURCE_DIR")]
BeforeTree = Annotated[bool, Key("CM_MLPERF_POWER_BEFORE_TREE")]
PowerPrograms = Annotated[str, Key("CM_MLPERF_POWER_SOURCE_GIT")]
SentenceSource = Annotated[str, Key("CM_NLTK_DATA_SOURCE")]
SystemFile = Annotated[str, Key("CM_MLPERF_SYSTEM_FILE")]
SystemName = Annotated[str, Key("CM_HW_NAME")]
ModelRevision = Annotated[str, Key("CM_ML_MODEL_REVISION")]
CalibrationSamples = Annotated[int, Key("CM_CALIBRATION_SAMPLES"), Bounds()]
VllmIndexUrl = Annotated[str, Key("CM_VLLM_INDEX_URL")]
VllmExtraIndexUrl = Annotated[str, Key("CM_VLLM_EXTRA_INDEX_URL")]
VllmWheel = Annotated[str, Key("CM_VLLM_WHEEL")]
RehearseFaults = Annotated[str, Key("CM_MLPERF_REHEARSE_FAULTS")]
RehearseSeed = Annotated[int, Key("CM_MLPERF_REHEARSE_SEED"), Bounds(zero=True)]
AcceptRestarted = Annotated[bool, Key("CM_MLPERF_ACCEPT_RESTARTED_SERVER")]

# --- exports that other recipes read ---

ProblemsDir = Annotated[str, Key("CM_LIVECODEBENCH_DIR")]
ServedFolder = Annotated[str, Key("CM_VLLM_SERVER_MODEL_FOLDER")]
CapsuleFile = Annotated[str, Key("CM_MLPERF_CAPSULE")]
CapsulePart = Annotated[str, Key("CM_MLPERF_CAPSULE_OF")]
VllmDevice = Annotated[str, Key("CM_VLLM_DEVICE")]
ImageRecordPath = Annotated[str, Key("CM_VLLM_IMAGE_RECORD")]
VllmInstallation = Annotated[str, Key("CM_VLLM_INSTALLATION")]
SubmissionDir = Annotated[str, Key("CM_MLPERF_INFERENCE_SUBMISSION_DIR")]
SubmissionArchive = Annotated[str, Key("CM_MLPERF_SUBMISSION_ARCHIVE")]

# --- servers ---

ApiServer = Annotated[str, Key("CM_MLPERF_INFERENCE_API_SERVER")]
ServerAction = Annotated[Literal["start", "describe", "status", "stop"], Key("CM_VLLM_SERVER_ACTION")]
ServerDir = Annotated[str, Key("CM_VLLM_SERVER_DIR")]
PlannedServer = Annotated[str, Key("CM_VLLM_SERVER_PLANNED")]
VllmModelName = Annotated[str, Key("CM_VLLM_SERVER_MODEL_NAME")]
ServerPort = Annotated[int, Key("CM_VLLM_SERVER_PORT")]
ReadyTimeout = Annotated[float | None, Key("CM_VLLM_SERVER_READY_TIMEOUT"), Bounds()]
Replicas = Annotated[int | None, Key("CM_VLLM_SERVER_REPLICAS"), Bounds()]
Nodes = Annotated[str, Key("CM_VLLM_SERVER_NODES")]
ContainerImage = Annotated[str, Key("CM_VLLM_CONTAINER")]
TpSize = Annotated[int | None, Key("CM_VLLM_SERVER_TP_SIZE"), Bounds()]
PpSize = Annotated[int | None, Key("CM_VLLM_SERVER_PP_SIZE"), Bounds()]
DpSize = Annotated[int | None, Key("CM_VLLM_SERVER_DP_SIZE"), Bounds()]
MaxModelLen = Annotated[int | None, Key("CM_VLLM_SERVER_MAX_MODEL_LEN"), Bounds()]
MaxNumSeqs = Annotated[int | None, Key("CM_VLLM_SERVER_MAX_NUM_SEQS"), Bounds()]
MaxNumBatchedTokens = Annotated[int | None, Key("CM_VLLM_SERVER_MAX_NUM_BATCHED_TOKENS"), Bounds()]
KvCacheDtype = Annotated[str, Key("CM_VLLM_SERVER_KV_CACHE_DTYPE")]
KvCacheSpace = Annotated[int | None, Key("CM_VLLM_SERVER_CPU_KVCACHE_SPACE"), Bounds(zero=True)]
GpuMemoryUtilization = Annotated[
    float | None, Key("CM_VLLM_SERVER_GPU_MEMORY_UTILIZATION"), Bounds(part_of="the GPU's memory")
]
PointArgs = Annotated[str, Key("CM_MLPERF_ENDPOINTS_POINT_ARGS")]
ExtraArgs = Annotated[str, Key("CM_VLLM_SERVER_EXTRA_ARGS")]

# --- curves of MLPerf Endpoints ---

EndpointsModel = Annotated[str, Key("CM_MLPERF_ENDPOINTS_MODEL")]
EndpointsCohort = Annotated[str, Key("CM_MLPERF_ENDPOINTS_COHORT")]
RulesFile = Annotated[str, Key("CM_MLPERF_RULES")]
SeedSetsFile = Annotated[str, Key("CM_MLPERF_ENDPOINTS_SEED_SETS")]
DraftersFile = Annotated[str, Key("CM_MLPERF_ENDPOINTS_APPROVED_DRAFTERS")]
CurveMin = Annotated[int, Key("CM_MLPERF_ENDPOINTS_C_MIN")]
CurveMax = Annotated[int, Key("CM_MLPERF_ENDPOINTS_C_MAX")]
CurvePoints = Annotated[str, Key("CM_MLPERF_ENDPOINTS_POINTS_GIVEN")]
CurvePointCount = Annotated[int, Key("CM_MLPERF_ENDPOINTS_POINT_COUNT")]
CurveOffline = Annotated[Literal["elected", "dedicated"], Key("CM_MLPERF_ENDPOINTS_OFFLINE_RESULT")]
EndpointsCurve = Annotated[str, Key("CM_MLPERF_ENDPOINTS_CURVE")]
PassSamples = Annotated[int, Key("CM_MLPERF_ENDPOINTS_PASS_SAMPLES")]
EndpointsPython = Annotated[str, Key("CM_MLPERF_ENDPOINTS_PYTHON")]
EndpointsCommit = Annotated[str, Key("CM_MLPERF_ENDPOINTS_COMMIT")]
EndpointsSource = Annotated[str, Key("CM_MLPERF_ENDPOINTS_SOURCE_DIR")]
SubmitterFile = Annotated[str, Key("CM_MLPERF_ENDPOINTS_SUBMITTER_FILE")]
EndpointsChecker = Annotated[str, Key("CM_MLPERF_ENDPOINTS_CHECKER")]


class VllmPythonInput(Settings, frozen=True, kw_only=True):
    """The Python that has vLLM, for recipes that install something beside it."""

    python: VllmPython = ""

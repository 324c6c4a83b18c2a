from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_WAITING: _ClassVar[State]
    STATE_SCHEDULED: _ClassVar[State]
    STATE_READY: _ClassVar[State]
    STATE_RUNNING: _ClassVar[State]
    STATE_RETRYING: _ClassVar[State]
    STATE_SUCCEEDED: _ClassVar[State]
    STATE_DEAD: _ClassVar[State]
    STATE_CANCELLED: _ClassVar[State]

class OnDuplicate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_DUPLICATE_UNSPECIFIED: _ClassVar[OnDuplicate]
    ON_DUPLICATE_RETURN: _ClassVar[OnDuplicate]
    ON_DUPLICATE_RAISE: _ClassVar[OnDuplicate]
    ON_DUPLICATE_REPLACE: _ClassVar[OnDuplicate]

class NackKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NACK_KIND_UNSPECIFIED: _ClassVar[NackKind]
    NACK_KIND_RETRY: _ClassVar[NackKind]
    NACK_KIND_DEAD: _ClassVar[NackKind]
    NACK_KIND_GIVE_BACK: _ClassVar[NackKind]
    NACK_KIND_CRASHED: _ClassVar[NackKind]
STATE_UNSPECIFIED: State
STATE_WAITING: State
STATE_SCHEDULED: State
STATE_READY: State
STATE_RUNNING: State
STATE_RETRYING: State
STATE_SUCCEEDED: State
STATE_DEAD: State
STATE_CANCELLED: State
ON_DUPLICATE_UNSPECIFIED: OnDuplicate
ON_DUPLICATE_RETURN: OnDuplicate
ON_DUPLICATE_RAISE: OnDuplicate
ON_DUPLICATE_REPLACE: OnDuplicate
NACK_KIND_UNSPECIFIED: NackKind
NACK_KIND_RETRY: NackKind
NACK_KIND_DEAD: NackKind
NACK_KIND_GIVE_BACK: NackKind
NACK_KIND_CRASHED: NackKind

class EnqueueRequest(_message.Message):
    __slots__ = ("task", "queue", "args_json", "kwargs_json", "priority", "delay_seconds", "at", "id", "key", "key_ttl_seconds", "on_duplicate", "once_seconds", "max_retries", "backoff", "timeout_seconds", "ttl_seconds", "result_ttl_seconds", "tags", "group", "description", "headers", "deadline_seconds")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ON_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ONCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESULT_TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    task: str
    queue: str
    args_json: str
    kwargs_json: str
    priority: int
    delay_seconds: float
    at: _timestamp_pb2.Timestamp
    id: str
    key: str
    key_ttl_seconds: float
    on_duplicate: OnDuplicate
    once_seconds: float
    max_retries: int
    backoff: str
    timeout_seconds: float
    ttl_seconds: float
    result_ttl_seconds: float
    tags: _containers.RepeatedScalarFieldContainer[str]
    group: str
    description: str
    headers: _containers.ScalarMap[str, str]
    deadline_seconds: float
    def __init__(self, task: _Optional[str] = ..., queue: _Optional[str] = ..., args_json: _Optional[str] = ..., kwargs_json: _Optional[str] = ..., priority: _Optional[int] = ..., delay_seconds: _Optional[float] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., id: _Optional[str] = ..., key: _Optional[str] = ..., key_ttl_seconds: _Optional[float] = ..., on_duplicate: _Optional[_Union[OnDuplicate, str]] = ..., once_seconds: _Optional[float] = ..., max_retries: _Optional[int] = ..., backoff: _Optional[str] = ..., timeout_seconds: _Optional[float] = ..., ttl_seconds: _Optional[float] = ..., result_ttl_seconds: _Optional[float] = ..., tags: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ..., description: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("id", "status", "duplicate")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: State
    duplicate: bool
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[State, str]] = ..., duplicate: bool = ...) -> None: ...

class EnqueueBatchRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[EnqueueRequest]
    def __init__(self, jobs: _Optional[_Iterable[_Union[EnqueueRequest, _Mapping]]] = ...) -> None: ...

class EnqueueBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EnqueueResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EnqueueResult, _Mapping]]] = ...) -> None: ...

class EnqueueResult(_message.Message):
    __slots__ = ("accepted", "refused")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    accepted: EnqueueResponse
    refused: Refusal
    def __init__(self, accepted: _Optional[_Union[EnqueueResponse, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("status", "code", "message", "field")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: str
    message: str
    field: str
    def __init__(self, status: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("id", "reason", "force")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    force: bool
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ..., force: bool = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    def __init__(self, cancelled: bool = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class SendEventRequest(_message.Message):
    __slots__ = ("id", "event", "value_json", "message_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    event: str
    value_json: str
    message_id: str
    def __init__(self, id: _Optional[str] = ..., event: _Optional[str] = ..., value_json: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class SendEventResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class WaitResultRequest(_message.Message):
    __slots__ = ("id", "wait")
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    wait: float
    def __init__(self, id: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "task", "queue", "priority", "status", "attempt", "args_json", "kwargs_json", "created_at", "due_at", "expires_at", "started_at", "finished_at", "result_json", "error", "reason", "progress", "worker", "runs", "failures", "crashes", "max_retries", "timeout_seconds", "key", "group", "tags", "description", "waits_for", "parent", "cancelling", "run_history", "deadline", "flow", "node")
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    CRASHES_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_FIELD_NUMBER: _ClassVar[int]
    RUN_HISTORY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    id: str
    task: str
    queue: str
    priority: int
    status: State
    attempt: int
    args_json: str
    kwargs_json: str
    created_at: _timestamp_pb2.Timestamp
    due_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    result_json: str
    error: Error
    reason: str
    progress: Progress
    worker: str
    runs: int
    failures: int
    crashes: int
    max_retries: int
    timeout_seconds: float
    key: str
    group: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    description: str
    waits_for: _containers.RepeatedScalarFieldContainer[str]
    parent: str
    cancelling: bool
    run_history: _containers.RepeatedCompositeFieldContainer[Run]
    deadline: _timestamp_pb2.Timestamp
    flow: str
    node: str
    def __init__(self, id: _Optional[str] = ..., task: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., status: _Optional[_Union[State, str]] = ..., attempt: _Optional[int] = ..., args_json: _Optional[str] = ..., kwargs_json: _Optional[str] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., due_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., result_json: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., reason: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., worker: _Optional[str] = ..., runs: _Optional[int] = ..., failures: _Optional[int] = ..., crashes: _Optional[int] = ..., max_retries: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., key: _Optional[str] = ..., group: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., waits_for: _Optional[_Iterable[str]] = ..., parent: _Optional[str] = ..., cancelling: bool = ..., run_history: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., flow: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("number", "outcome", "started_at", "ended_at", "worker", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    outcome: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    worker: str
    error: str
    def __init__(self, number: _Optional[int] = ..., outcome: _Optional[str] = ..., started_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., worker: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message", "traceback")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    traceback: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("done", "total", "note", "data_json")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    done: float
    total: float
    note: str
    data_json: str
    def __init__(self, done: _Optional[float] = ..., total: _Optional[float] = ..., note: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class FetchAndHoldRequest(_message.Message):
    __slots__ = ("queues", "limit", "lease", "tasks", "wait")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    lease: float
    tasks: _containers.RepeatedScalarFieldContainer[str]
    wait: float
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., lease: _Optional[float] = ..., tasks: _Optional[_Iterable[str]] = ..., wait: _Optional[float] = ...) -> None: ...

class FetchAndHoldResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[HeldJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[HeldJob, _Mapping]]] = ...) -> None: ...

class HeldJob(_message.Message):
    __slots__ = ("id", "token", "task", "queue", "priority", "attempt", "args_json", "kwargs_json", "payload", "codec", "max_retries", "timeout_seconds", "lease_until", "suspect", "key", "group", "tags", "description", "headers", "run")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    id: str
    token: str
    task: str
    queue: str
    priority: int
    attempt: int
    args_json: str
    kwargs_json: str
    payload: bytes
    codec: str
    max_retries: int
    timeout_seconds: float
    lease_until: _timestamp_pb2.Timestamp
    suspect: bool
    key: str
    group: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    description: str
    headers: _containers.ScalarMap[str, str]
    run: int
    def __init__(self, id: _Optional[str] = ..., token: _Optional[str] = ..., task: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., attempt: _Optional[int] = ..., args_json: _Optional[str] = ..., kwargs_json: _Optional[str] = ..., payload: _Optional[bytes] = ..., codec: _Optional[str] = ..., max_retries: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., lease_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., suspect: bool = ..., key: _Optional[str] = ..., group: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., run: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("id", "token", "result_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    token: str
    result_json: str
    def __init__(self, id: _Optional[str] = ..., token: _Optional[str] = ..., result_json: _Optional[str] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("id", "token", "kind", "error", "delay_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    token: str
    kind: NackKind
    error: Error
    delay_seconds: float
    def __init__(self, id: _Optional[str] = ..., token: _Optional[str] = ..., kind: _Optional[_Union[NackKind, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., delay_seconds: _Optional[float] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: State
    def __init__(self, status: _Optional[_Union[State, str]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("id", "token", "lease", "progress")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    token: str
    lease: float
    progress: Progress
    def __init__(self, id: _Optional[str] = ..., token: _Optional[str] = ..., lease: _Optional[float] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("lease_until", "cancelling")
    LEASE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_FIELD_NUMBER: _ClassVar[int]
    lease_until: _timestamp_pb2.Timestamp
    cancelling: bool
    def __init__(self, lease_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., cancelling: bool = ...) -> None: ...

class WorkRequest(_message.Message):
    __slots__ = ("start", "credits", "acks", "nacks", "progress", "leave")
    START_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    NACKS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    start: WorkStart
    credits: int
    acks: _containers.RepeatedCompositeFieldContainer[WorkAck]
    nacks: _containers.RepeatedCompositeFieldContainer[WorkNack]
    progress: _containers.RepeatedCompositeFieldContainer[WorkProgress]
    leave: bool
    def __init__(self, start: _Optional[_Union[WorkStart, _Mapping]] = ..., credits: _Optional[int] = ..., acks: _Optional[_Iterable[_Union[WorkAck, _Mapping]]] = ..., nacks: _Optional[_Iterable[_Union[WorkNack, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[WorkProgress, _Mapping]]] = ..., leave: bool = ...) -> None: ...

class WorkStart(_message.Message):
    __slots__ = ("queues", "tasks", "lease", "credits")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    tasks: _containers.RepeatedScalarFieldContainer[str]
    lease: float
    credits: int
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., tasks: _Optional[_Iterable[str]] = ..., lease: _Optional[float] = ..., credits: _Optional[int] = ...) -> None: ...

class WorkAck(_message.Message):
    __slots__ = ("id", "run", "result_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    result_json: str
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., result_json: _Optional[str] = ...) -> None: ...

class WorkNack(_message.Message):
    __slots__ = ("id", "run", "kind", "error", "delay_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    kind: NackKind
    error: Error
    delay_seconds: float
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., kind: _Optional[_Union[NackKind, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., delay_seconds: _Optional[float] = ...) -> None: ...

class WorkProgress(_message.Message):
    __slots__ = ("id", "run", "progress")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    progress: Progress
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class WorkReply(_message.Message):
    __slots__ = ("started", "jobs", "settled", "stops", "finishing")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    started: WorkStarted
    jobs: _containers.RepeatedCompositeFieldContainer[HeldJob]
    settled: _containers.RepeatedCompositeFieldContainer[WorkSettled]
    stops: _containers.RepeatedCompositeFieldContainer[WorkStop]
    finishing: bool
    def __init__(self, started: _Optional[_Union[WorkStarted, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[HeldJob, _Mapping]]] = ..., settled: _Optional[_Iterable[_Union[WorkSettled, _Mapping]]] = ..., stops: _Optional[_Iterable[_Union[WorkStop, _Mapping]]] = ..., finishing: bool = ...) -> None: ...

class WorkStarted(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: float
    def __init__(self, lease: _Optional[float] = ...) -> None: ...

class WorkSettled(_message.Message):
    __slots__ = ("id", "run", "status", "refused")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    status: State
    refused: Refusal
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., status: _Optional[_Union[State, str]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class WorkStop(_message.Message):
    __slots__ = ("id", "run", "lost")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    lost: bool
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., lost: bool = ...) -> None: ...

class GetFlowRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListFlowsRequest(_message.Message):
    __slots__ = ("state", "limit", "cursor")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    state: str
    limit: int
    cursor: str
    def __init__(self, state: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListFlowsResponse(_message.Message):
    __slots__ = ("flows", "cursor")
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    cursor: str
    def __init__(self, flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("id", "name", "status", "reason", "key", "created_at", "finished_at", "counts", "nodes", "node_count")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    status: str
    reason: str
    key: str
    created_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    counts: _containers.ScalarMap[str, int]
    nodes: _containers.RepeatedCompositeFieldContainer[FlowNode]
    node_count: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[str] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., counts: _Optional[_Mapping[str, int]] = ..., nodes: _Optional[_Iterable[_Union[FlowNode, _Mapping]]] = ..., node_count: _Optional[int] = ...) -> None: ...

class FlowNode(_message.Message):
    __slots__ = ("name", "id", "task", "queue", "status", "when", "inputs", "skipped", "reason", "items")
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    task: str
    queue: str
    status: State
    when: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    skipped: bool
    reason: str
    items: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., task: _Optional[str] = ..., queue: _Optional[str] = ..., status: _Optional[_Union[State, str]] = ..., when: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., skipped: bool = ..., reason: _Optional[str] = ..., items: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "counts", "paused", "next_due", "oldest_ready")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READY_FIELD_NUMBER: _ClassVar[int]
    name: str
    counts: _containers.ScalarMap[str, int]
    paused: bool
    next_due: _timestamp_pb2.Timestamp
    oldest_ready: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., paused: bool = ..., next_due: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., oldest_ready: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("cursor", "from_oldest", "queues")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FROM_OLDEST_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    from_oldest: bool
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cursor: _Optional[str] = ..., from_oldest: bool = ..., queues: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("events", "cursor", "gaps")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    cursor: str
    gaps: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., cursor: _Optional[str] = ..., gaps: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "id", "queue", "run", "at", "number")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    queue: str
    run: int
    at: _timestamp_pb2.Timestamp
    number: int
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., queue: _Optional[str] = ..., run: _Optional[int] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

package authorization

import (
	"fmt"
	"slices"
	"strings"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workerpb "go.temporal.io/api/worker/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// rule returns the reason why a client may not make a request; empty if it may.
type rule func(client Identity, request any) string

// rules are the methods that gardenlets and extensions may call. All other methods are refused.
var rules = map[Role]map[string]rule{
	Seeds: {
		"DescribeNamespace":            free,
		"PollActivityTaskQueue":        pollActivities,
		"RecordActivityTaskHeartbeat":  free, // these four methods name a task only by its token, see Tokens
		"RespondActivityTaskCompleted": free,
		"RespondActivityTaskFailed":    free,
		"RespondActivityTaskCanceled":  free,
		"RecordWorkerHeartbeat":        workerHeartbeat,
		"ShutdownWorker":               shutdownWorker,
	},
	Extensions: {
		"DescribeNamespace":              free,
		"PollActivityTaskQueue":          pollActivities,
		"RecordActivityTaskHeartbeat":    free,
		"RespondActivityTaskCompleted":   free,
		"RespondActivityTaskFailed":      free,
		"RespondActivityTaskCanceled":    free,
		"RecordWorkerHeartbeat":          workerHeartbeat,
		"ShutdownWorker":                 shutdownWorker,
		"PollWorkflowTaskQueue":          pollWorkflows,
		"RespondWorkflowTaskCompleted":   completeWorkflowTask,
		"RespondWorkflowTaskFailed":      free,
		"RespondQueryTaskCompleted":      free,
		"StartWorkflowExecution":         startWorkflow,
		"GetWorkflowExecutionHistory":    ownExecution,
		"DescribeWorkflowExecution":      ownExecution,
		"RequestCancelWorkflowExecution": ownExecution,
		"TerminateWorkflowExecution":     ownExecution,
	},
}

// free is for methods that name no queue and no workflow.
func free(Identity, any) string {
	return ""
}

func pollActivities(client Identity, request any) string {
	poll, isPoll := request.(*workflowservice.PollActivityTaskQueueRequest)
	if !isPoll {
		return unreadable(request)
	}
	return first(
		client.normalQueue(poll.GetTaskQueue()),
		unversioned(poll.GetDeploymentOptions(), poll.GetWorkerVersionCapabilities()),
	)
}

func pollWorkflows(client Identity, request any) string {
	poll, isPoll := request.(*workflowservice.PollWorkflowTaskQueueRequest)
	if !isPoll {
		return unreadable(request)
	}
	return first(
		client.workflowQueue(poll.GetTaskQueue()),
		unversioned(poll.GetDeploymentOptions(), poll.GetWorkerVersionCapabilities()),
	)
}

func workerHeartbeat(client Identity, request any) string {
	heartbeat, isHeartbeat := request.(*workflowservice.RecordWorkerHeartbeatRequest)
	if !isHeartbeat {
		return unreadable(request)
	}
	for _, worker := range heartbeat.GetWorkerHeartbeat() {
		if reason := client.worker(worker); reason != "" {
			return reason
		}
	}
	return ""
}

func shutdownWorker(client Identity, request any) string {
	shutdown, isShutdown := request.(*workflowservice.ShutdownWorkerRequest)
	if !isShutdown {
		return unreadable(request)
	}
	if sticky := shutdown.GetStickyTaskQueue(); sticky != "" && (client.Prefix == "" || !client.ownsSticky(sticky)) {
		return foreignQueue(sticky)
	}
	if queue := shutdown.GetTaskQueue(); queue != "" && queue != client.Queue {
		return foreignQueue(queue)
	}
	return client.worker(shutdown.GetWorkerHeartbeat())
}

// startFields are the fields that an extension may set. They exclude callbacks, links and overrides of versions.
var startFields = []protoreflect.Name{
	"namespace", "workflow_id", "workflow_type", "task_queue", "input", "workflow_execution_timeout",
	"workflow_run_timeout", "workflow_task_timeout", "identity", "request_id", "workflow_id_reuse_policy",
	"workflow_id_conflict_policy", "retry_policy", "memo", "header", "request_eager_execution", "workflow_start_delay",
	"user_metadata", "priority", "eager_worker_deployment_options",
}

func startWorkflow(client Identity, request any) string {
	start, isStart := request.(*workflowservice.StartWorkflowExecutionRequest)
	if !isStart {
		return unreadable(request)
	}
	return first(
		client.workflow(start.GetWorkflowId()),
		client.normalQueue(start.GetTaskQueue()),
		unversioned(start.GetEagerWorkerDeploymentOptions(), nil),
		only(start, startFields),
	)
}

// ownExecution is for methods that name one workflow, in one of two fields.
func ownExecution(client Identity, request any) string {
	switch request := request.(type) {
	case interface {
		GetExecution() *commonpb.WorkflowExecution
	}:
		return client.workflow(request.GetExecution().GetWorkflowId())
	case interface {
		GetWorkflowExecution() *commonpb.WorkflowExecution
	}:
		return client.workflow(request.GetWorkflowExecution().GetWorkflowId())
	default:
		return unreadable(request)
	}
}

func completeWorkflowTask(client Identity, request any) string {
	completed, isCompleted := request.(*workflowservice.RespondWorkflowTaskCompletedRequest)
	if !isCompleted {
		return unreadable(request)
	}
	if sticky := completed.GetStickyAttributes().GetWorkerTaskQueue(); sticky != nil {
		if reason := client.workflowQueue(sticky); reason != "" {
			return reason
		}
	}
	if reason := unversioned(completed.GetDeploymentOptions(), nil); reason != "" {
		return reason
	}
	for _, command := range completed.GetCommands() {
		if reason := client.command(command, completed.GetNamespace()); reason != "" {
			return reason
		}
	}
	return ""
}

// command allows commands about the workflow itself, its activities, and workflows of the same extension.
func (i Identity) command(command *commandpb.Command, namespace string) string {
	switch command.GetCommandType() {
	case enumspb.COMMAND_TYPE_START_TIMER,
		enumspb.COMMAND_TYPE_CANCEL_TIMER,
		enumspb.COMMAND_TYPE_RECORD_MARKER,
		enumspb.COMMAND_TYPE_PROTOCOL_MESSAGE,
		enumspb.COMMAND_TYPE_MODIFY_WORKFLOW_PROPERTIES,
		enumspb.COMMAND_TYPE_REQUEST_CANCEL_ACTIVITY_TASK,
		enumspb.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
		enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
		enumspb.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION:
		return ""
	case enumspb.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
		return patchesOnly(command.GetUpsertWorkflowSearchAttributesCommandAttributes().GetSearchAttributes())
	case enumspb.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK:
		return i.normalQueue(command.GetScheduleActivityTaskCommandAttributes().GetTaskQueue())
	case enumspb.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION:
		attributes := command.GetContinueAsNewWorkflowExecutionCommandAttributes()
		return first(i.normalQueue(attributes.GetTaskQueue()), patchesOnly(attributes.GetSearchAttributes()))
	case enumspb.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION:
		attributes := command.GetStartChildWorkflowExecutionCommandAttributes()
		return first(
			sameNamespace(attributes.GetNamespace(), namespace),
			i.workflow(attributes.GetWorkflowId()),
			i.normalQueue(attributes.GetTaskQueue()),
			patchesOnly(attributes.GetSearchAttributes()),
		)
	case enumspb.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION:
		attributes := command.GetRequestCancelExternalWorkflowExecutionCommandAttributes()
		return first(sameNamespace(attributes.GetNamespace(), namespace), i.workflow(attributes.GetWorkflowId()))
	case enumspb.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION:
		attributes := command.GetSignalExternalWorkflowExecutionCommandAttributes()
		return first(
			sameNamespace(attributes.GetNamespace(), namespace),
			i.workflow(attributes.GetExecution().GetWorkflowId()),
		)
	default:
		return fmt.Sprintf("extensions may not give the command %s", command.GetCommandType())
	}
}

// normalQueue refuses all queues except the client's own queue, and that queue if the request gives it another kind.
func (i Identity) normalQueue(queue *taskqueuepb.TaskQueue) string {
	sticky := queue.GetKind() != enumspb.TASK_QUEUE_KIND_NORMAL && queue.GetKind() != enumspb.TASK_QUEUE_KIND_UNSPECIFIED
	if sticky || queue.GetNormalName() != "" || queue.GetName() != i.Queue {
		return foreignQueue(queue.GetName())
	}
	return ""
}

// workflowQueue also allows the sticky queues of the client's workers.
func (i Identity) workflowQueue(queue *taskqueuepb.TaskQueue) string {
	if queue.GetKind() != enumspb.TASK_QUEUE_KIND_STICKY {
		return i.normalQueue(queue)
	}
	if queue.GetNormalName() != i.Queue || !i.ownsSticky(queue.GetName()) {
		return foreignQueue(queue.GetName())
	}
	return ""
}

// ownsSticky compares only names: Temporal distinguishes queues by name, whatever kind a request says.
// The name of a worker's sticky queue begins with the worker's identity, which begins with the queue's name.
func (i Identity) ownsSticky(name string) bool {
	return strings.HasPrefix(name, i.Queue+"@")
}

func (i Identity) workflow(id string) string {
	if i.Prefix == "" || !strings.HasPrefix(id, i.Prefix) {
		return fmt.Sprintf("workflow %q is not the client's", id)
	}
	return ""
}

func (i Identity) worker(heartbeat *workerpb.WorkerHeartbeat) string {
	if queue := heartbeat.GetTaskQueue(); queue != "" && queue != i.Queue {
		return foreignQueue(queue)
	}
	return ""
}

// unversioned refuses clients that join a worker deployment, because its versions decide where the garden's workflows
// run.
func unversioned(options *deploymentpb.WorkerDeploymentOptions, capabilities *commonpb.WorkerVersionCapabilities) string {
	versioned := options.GetWorkerVersioningMode() == enumspb.WORKER_VERSIONING_MODE_VERSIONED
	if versioned || capabilities.GetUseVersioning() {
		return "the client may not join a worker deployment"
	}
	return ""
}

// patchesOnly allows the search attribute that an SDK sets for workflow.patched, and no other one.
func patchesOnly(attributes *commonpb.SearchAttributes) string {
	for name := range attributes.GetIndexedFields() {
		if name != "TemporalChangeVersion" {
			return fmt.Sprintf("the client may not set search attribute %q", name)
		}
	}
	return ""
}

func sameNamespace(named, own string) string {
	if named != "" && named != own {
		return fmt.Sprintf("namespace %q is not the client's", named)
	}
	return ""
}

// only refuses a message that has any other field than the allowed ones.
func only(message proto.Message, allowed []protoreflect.Name) (reason string) {
	message.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(allowed, field.Name()) {
			reason = fmt.Sprintf("the client may not set field %s", field.Name())
		}
		return reason == ""
	})
	return reason
}

func first(reasons ...string) string {
	for _, reason := range reasons {
		if reason != "" {
			return reason
		}
	}
	return ""
}

func foreignQueue(name string) string {
	return fmt.Sprintf("task queue %q is not the client's", name)
}

func unreadable(request any) string {
	return fmt.Sprintf("a request of type %T is not expected here", request)
}

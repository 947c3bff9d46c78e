package authorization

import (
	"context"
	"slices"
	"strings"
	"testing"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workerpb "go.temporal.io/api/worker/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/api"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const namespace = "default"

var (
	seedA      = Identity{Seeds, "gardener.cloud:system:seed:a", "seed-a", ""}
	extension  = Identity{Extensions, "gardener.cloud:system:extension:provider-local:a", "provider-local-a", "provider-local/a/"}
	operator   = Identity{Role: Operators, Name: "gardener-controller-manager"}
	viewer     = Identity{Role: Viewers, Name: "alice"}
	repairer   = Identity{Role: Repairers, Name: "bob"}
	admin      = Identity{Role: Admins, Name: "carol"}
	identities = []Identity{seedA, extension, operator, viewer, repairer, admin}

	authorizer = NewAuthorizer([]string{namespace}, log.NewNoopLogger())
)

func decide(t *testing.T, client Identity, method string, request any) bool {
	t.Helper()
	claims := &authorization.Claims{Subject: client.Name, AuthType: string(client.Role), Extensions: client}
	return decideFor(t, claims, method, request)
}

func decideFor(t *testing.T, claims *authorization.Claims, method string, request any) bool {
	t.Helper()
	target := &authorization.CallTarget{APIName: method, Request: request}
	if named, isNamed := request.(interface{ GetNamespace() string }); isNamed {
		target.Namespace = named.GetNamespace()
	}
	result, err := authorizer.Authorize(context.Background(), claims, target)
	if err != nil {
		t.Fatal(err)
	}
	return result.Decision == authorization.DecisionAllow
}

// methods returns a request for each method of the services that clients see, by the method's full name.
func methods(t *testing.T) map[string]proto.Message {
	t.Helper()
	found := map[string]proto.Message{}
	for _, file := range []protoreflect.FileDescriptor{
		workflowservice.File_temporal_api_workflowservice_v1_service_proto,
		operatorservice.File_temporal_api_operatorservice_v1_service_proto,
	} {
		for index := range file.Services().Len() {
			service := file.Services().Get(index)
			for position := range service.Methods().Len() {
				method := service.Methods().Get(position)
				kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				found["/"+string(service.FullName())+"/"+string(method.Name())] = kind.New().Interface()
			}
		}
	}
	if len(found) < 100 {
		t.Fatalf("only %d methods found", len(found))
	}
	return found
}

// aimed sets the namespace, and all fields at any depth that name a queue or a workflow.
func aimed(message proto.Message, queue, workflow string) proto.Message {
	aim(message.ProtoReflect(), queue, workflow, 0)
	return message
}

func aim(message protoreflect.Message, queue, workflow string, depth int) {
	all := message.Descriptor().Fields()
	for index := range all.Len() {
		field := all.Get(index)
		switch isText := field.Kind() == protoreflect.StringKind && !field.IsList(); {
		case isText && field.Name() == "namespace":
			message.Set(field, protoreflect.ValueOfString(namespace))
		case isText && field.Name() == "task_queue":
			message.Set(field, protoreflect.ValueOfString(queue))
		case isText && field.Name() == "sticky_task_queue":
			message.Set(field, protoreflect.ValueOfString(queue))
		case isText && field.Name() == "workflow_id":
			message.Set(field, protoreflect.ValueOfString(workflow))
		case field.Message() == nil || field.IsMap() || depth > 2:
			continue
		case field.IsList():
			inner := message.NewField(field).List().NewElement().Message()
			aim(inner, queue, workflow, depth+1)
			if proto.Size(inner.Interface()) > 0 {
				message.Mutable(field).List().Append(protoreflect.ValueOfMessage(inner))
			}
		case field.Message().FullName() == "temporal.api.taskqueue.v1.TaskQueue":
			message.Set(field, protoreflect.ValueOfMessage((&taskqueuepb.TaskQueue{Name: queue}).ProtoReflect()))
		case strings.HasPrefix(string(field.Message().FullName()), "temporal.api."):
			inner := message.NewField(field).Message()
			before := proto.Size(inner.Interface())
			aim(inner, queue, workflow, depth+1)
			if proto.Size(inner.Interface()) > before {
				message.Set(field, protoreflect.ValueOfMessage(inner))
			}
		}
	}
}

// answers name a task by its token alone, which Tokens checks.
var answers = []string{
	"RecordActivityTaskHeartbeat", "RespondActivityTaskCompleted", "RespondActivityTaskFailed", "RespondActivityTaskCanceled",
}

func allowed(t *testing.T, client Identity, queue, workflow string) []string {
	t.Helper()
	var found []string
	for method, request := range methods(t) {
		if decide(t, client, method, aimed(request, queue, workflow)) {
			found = append(found, api.MethodName(method))
		}
	}
	slices.Sort(found)
	return found
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: allowed are %v, want %v", what, got, want)
	}
}

func TestAGardenletMayDoNothingWithAnotherSeedsQueueAndWorkflows(t *testing.T) {
	want := append([]string{"DescribeNamespace", "GetSystemInfo"}, answers...)
	for _, queue := range []string{"seed-b", "garden", "provider-local-a", "/_sys/seed-a/1", "temporal-sys/worker-commands/default/x"} {
		expect(t, queue, allowed(t, seedA, queue, "shoot/project/name/uid"), want...)
	}
}

func TestAGardenletMayPollItsOwnQueue(t *testing.T) {
	expect(t, "seed-a", allowed(t, seedA, "seed-a", "shoot/project/name/uid"), append([]string{
		"DescribeNamespace", "GetSystemInfo", "PollActivityTaskQueue", "RecordWorkerHeartbeat",
	}, answers...)...)
	if !decide(t, seedA, api.WorkflowServicePrefix+"ShutdownWorker",
		&workflowservice.ShutdownWorkerRequest{Namespace: namespace, TaskQueue: "seed-a"}) {
		t.Error("a gardenlet may not tell that its worker ends")
	}
}

func TestAnExtensionMayDoNothingWithAnothersQueueAndWorkflows(t *testing.T) {
	want := append([]string{
		"DescribeNamespace", "GetSystemInfo", "RespondWorkflowTaskFailed", "RespondQueryTaskCompleted",
	}, answers...)
	for _, queue := range []string{"provider-local-b", "seed-a", "garden"} {
		for _, workflow := range []string{"provider-local/b/worker/x", "provider-local/a", "shoot/project/name/uid", ""} {
			got := allowed(t, extension, queue, workflow)
			// Whether an extension may complete a workflow task depends on commands and sticky queue, see below.
			got = slices.DeleteFunc(got, func(method string) bool { return method == "RespondWorkflowTaskCompleted" })
			expect(t, queue+" "+workflow, got, want...)
		}
	}
}

func TestAnExtensionMayRunItsOwnWorkflows(t *testing.T) {
	got := allowed(t, extension, "provider-local-a", "provider-local/a/worker/ns/name/reconcile/1")
	got = slices.DeleteFunc(got, func(method string) bool { return method == "RespondWorkflowTaskCompleted" })
	expect(t, "own", got, append([]string{
		"DescribeNamespace", "GetSystemInfo", "PollActivityTaskQueue", "PollWorkflowTaskQueue", "RecordWorkerHeartbeat",
		"RespondWorkflowTaskFailed", "RespondQueryTaskCompleted",
		"GetWorkflowExecutionHistory", "DescribeWorkflowExecution", "RequestCancelWorkflowExecution",
		"TerminateWorkflowExecution",
	}, answers...)...)
	start := &workflowservice.StartWorkflowExecutionRequest{
		Namespace: namespace, WorkflowId: "provider-local/a/worker/x", TaskQueue: &taskqueuepb.TaskQueue{Name: "provider-local-a"},
	}
	if !decide(t, extension, api.WorkflowServicePrefix+"StartWorkflowExecution", start) {
		t.Error("an extension may not start its own workflow")
	}
}

func TestAStartWithFieldsThatReachFurtherIsRefused(t *testing.T) {
	for name, change := range map[string]func(*workflowservice.StartWorkflowExecutionRequest){
		"callback": func(r *workflowservice.StartWorkflowExecutionRequest) {
			r.CompletionCallbacks = []*commonpb.Callback{{}}
		},
		"link": func(r *workflowservice.StartWorkflowExecutionRequest) { r.Links = []*commonpb.Link{{}} },
		"search attributes": func(r *workflowservice.StartWorkflowExecutionRequest) {
			r.SearchAttributes = &commonpb.SearchAttributes{}
		},
		"cron":      func(r *workflowservice.StartWorkflowExecutionRequest) { r.CronSchedule = "* * * * *" },
		"namespace": func(r *workflowservice.StartWorkflowExecutionRequest) { r.Namespace = "temporal-system" },
		"queue":     func(r *workflowservice.StartWorkflowExecutionRequest) { r.TaskQueue.Name = "garden" },
		"no queue":  func(r *workflowservice.StartWorkflowExecutionRequest) { r.TaskQueue = nil },
	} {
		start := &workflowservice.StartWorkflowExecutionRequest{
			Namespace: namespace, WorkflowId: "provider-local/a/worker/x", TaskQueue: &taskqueuepb.TaskQueue{Name: "provider-local-a"},
		}
		change(start)
		if decide(t, extension, api.WorkflowServicePrefix+"StartWorkflowExecution", start) {
			t.Error(name)
		}
	}
}

func TestAPollIsForTheOwnQueueByItsOwnName(t *testing.T) {
	versioned := &deploymentpb.WorkerDeploymentOptions{
		DeploymentName: "controller-manager", WorkerVersioningMode: enumspb.WORKER_VERSIONING_MODE_VERSIONED,
	}
	sticky := func(name, normal string) *taskqueuepb.TaskQueue {
		return &taskqueuepb.TaskQueue{Name: name, NormalName: normal, Kind: enumspb.TASK_QUEUE_KIND_STICKY}
	}
	for name, test := range map[string]struct {
		client  Identity
		request any
		want    bool
	}{
		"own":                                {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: "provider-local-a"}}, true},
		"own sticky":                         {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: sticky("provider-local-a@host-1", "provider-local-a")}, true},
		"the garden's queue as a sticky one": {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: sticky("garden", "provider-local-a")}, false},
		"another's sticky queue":             {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: sticky("provider-local-b@host-1", "provider-local-a")}, false},
		"another's normal queue":             {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: sticky("provider-local-a@host-1", "garden")}, false},
		"a deployment":                       {extension, &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: "provider-local-a"}, DeploymentOptions: versioned}, false},
		"activities of a deployment":         {seedA, &workflowservice.PollActivityTaskQueueRequest{Namespace: namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: "seed-a"}, DeploymentOptions: versioned}, false},
		"activities by a sticky name":        {seedA, &workflowservice.PollActivityTaskQueueRequest{Namespace: namespace, TaskQueue: sticky("seed-a", "seed-b")}, false},
		"activities without a queue":         {seedA, &workflowservice.PollActivityTaskQueueRequest{Namespace: namespace}, false},
		"a heartbeat for another":            {seedA, &workflowservice.RecordWorkerHeartbeatRequest{Namespace: namespace, WorkerHeartbeat: []*workerpb.WorkerHeartbeat{{TaskQueue: "seed-a"}, {TaskQueue: "seed-b"}}}, false},
		"the end of another's worker":        {extension, &workflowservice.ShutdownWorkerRequest{Namespace: namespace, StickyTaskQueue: "garden"}, false},
		"the end of an own worker":           {extension, &workflowservice.ShutdownWorkerRequest{Namespace: namespace, StickyTaskQueue: "provider-local-a@host-1", TaskQueue: "provider-local-a"}, true},
	} {
		method := strings.TrimSuffix(string(test.request.(proto.Message).ProtoReflect().Descriptor().Name()), "Request")
		if got := decide(t, test.client, api.WorkflowServicePrefix+method, test.request); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnExtensionsCommandsStayWithItsOwnWorkflows(t *testing.T) {
	queue := func(name string) *taskqueuepb.TaskQueue { return &taskqueuepb.TaskQueue{Name: name} }
	activity := func(name string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK, Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{
			ScheduleActivityTaskCommandAttributes: &commandpb.ScheduleActivityTaskCommandAttributes{TaskQueue: queue(name)},
		}}
	}
	child := func(namespace, id, on string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION, Attributes: &commandpb.Command_StartChildWorkflowExecutionCommandAttributes{
			StartChildWorkflowExecutionCommandAttributes: &commandpb.StartChildWorkflowExecutionCommandAttributes{Namespace: namespace, WorkflowId: id, TaskQueue: queue(on)},
		}}
	}
	signal := func(id string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION, Attributes: &commandpb.Command_SignalExternalWorkflowExecutionCommandAttributes{
			SignalExternalWorkflowExecutionCommandAttributes: &commandpb.SignalExternalWorkflowExecutionCommandAttributes{Execution: &commonpb.WorkflowExecution{WorkflowId: id}},
		}}
	}
	cancel := func(id string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION, Attributes: &commandpb.Command_RequestCancelExternalWorkflowExecutionCommandAttributes{
			RequestCancelExternalWorkflowExecutionCommandAttributes: &commandpb.RequestCancelExternalWorkflowExecutionCommandAttributes{WorkflowId: id},
		}}
	}
	again := func(on string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION, Attributes: &commandpb.Command_ContinueAsNewWorkflowExecutionCommandAttributes{
			ContinueAsNewWorkflowExecutionCommandAttributes: &commandpb.ContinueAsNewWorkflowExecutionCommandAttributes{TaskQueue: queue(on)},
		}}
	}
	upsert := func(name string) *commandpb.Command {
		return &commandpb.Command{CommandType: enumspb.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES, Attributes: &commandpb.Command_UpsertWorkflowSearchAttributesCommandAttributes{
			UpsertWorkflowSearchAttributesCommandAttributes: &commandpb.UpsertWorkflowSearchAttributesCommandAttributes{
				SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{name: {}}},
			},
		}}
	}
	of := func(kind enumspb.CommandType) *commandpb.Command { return &commandpb.Command{CommandType: kind} }
	for name, test := range map[string]struct {
		command *commandpb.Command
		want    bool
	}{
		"own activity":             {activity("provider-local-a"), true},
		"activity in a seed":       {activity("seed-a"), false},
		"activity without queue":   {activity(""), false},
		"own child":                {child("", "provider-local/a/x", "provider-local-a"), true},
		"child with foreign id":    {child("", "shoot/x", "provider-local-a"), false},
		"child in foreign queue":   {child("", "provider-local/a/x", "garden"), false},
		"child in system":          {child("temporal-system", "provider-local/a/x", "provider-local-a"), false},
		"signal to own":            {signal("provider-local/a/x"), true},
		"signal to a lifecycle":    {signal("shoot/x"), false},
		"cancel own":               {cancel("provider-local/a/x"), true},
		"cancel a lifecycle":       {cancel("shoot/x"), false},
		"continue":                 {again("provider-local-a"), true},
		"continue in the garden":   {again("garden"), false},
		"attribute of a patch":     {upsert("TemporalChangeVersion"), true},
		"attribute of a shoot":     {upsert("GardenerShoot"), false},
		"nexus operation":          {of(enumspb.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION), false},
		"cancel a nexus operation": {of(enumspb.COMMAND_TYPE_REQUEST_CANCEL_NEXUS_OPERATION), false},
		"a command of tomorrow":    {of(enumspb.CommandType(9999)), false},
		"timer":                    {of(enumspb.COMMAND_TYPE_START_TIMER), true},
		"end":                      {of(enumspb.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION), true},
	} {
		request := &workflowservice.RespondWorkflowTaskCompletedRequest{
			Namespace: namespace, Commands: []*commandpb.Command{of(enumspb.COMMAND_TYPE_START_TIMER), test.command},
		}
		if got := decide(t, extension, api.WorkflowServicePrefix+"RespondWorkflowTaskCompleted", request); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPeopleMayDoWhatTheirRoleSays(t *testing.T) {
	for name, test := range map[string]struct {
		method  string
		request any
		may     []Identity
	}{
		"list":              {api.WorkflowServicePrefix + "ListWorkflowExecutions", &workflowservice.ListWorkflowExecutionsRequest{Namespace: namespace}, []Identity{viewer, repairer, admin, operator}},
		"query":             {api.WorkflowServicePrefix + "QueryWorkflow", &workflowservice.QueryWorkflowRequest{Namespace: namespace}, []Identity{viewer, repairer, admin, operator}},
		"update":            {api.WorkflowServicePrefix + "UpdateWorkflowExecution", &workflowservice.UpdateWorkflowExecutionRequest{Namespace: namespace}, []Identity{repairer, admin, operator}},
		"signal":            {api.WorkflowServicePrefix + "SignalWorkflowExecution", &workflowservice.SignalWorkflowExecutionRequest{Namespace: namespace}, []Identity{admin, operator}},
		"terminate":         {api.WorkflowServicePrefix + "TerminateWorkflowExecution", &workflowservice.TerminateWorkflowExecutionRequest{Namespace: namespace}, []Identity{admin, operator}},
		"poll activities":   {api.WorkflowServicePrefix + "PollActivityTaskQueue", &workflowservice.PollActivityTaskQueueRequest{Namespace: namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: "seed-b"}}, []Identity{admin, operator}},
		"register":          {api.WorkflowServicePrefix + "RegisterNamespace", &workflowservice.RegisterNamespaceRequest{Namespace: namespace}, []Identity{admin, operator}},
		"register another":  {api.WorkflowServicePrefix + "RegisterNamespace", &workflowservice.RegisterNamespaceRequest{Namespace: "other"}, nil},
		"list in another":   {api.WorkflowServicePrefix + "ListWorkflowExecutions", &workflowservice.ListWorkflowExecutionsRequest{Namespace: "temporal-system"}, nil},
		"list in none":      {api.WorkflowServicePrefix + "ListWorkflowExecutions", &workflowservice.ListWorkflowExecutionsRequest{}, nil},
		"describe by id":    {api.WorkflowServicePrefix + "DescribeNamespace", &workflowservice.DescribeNamespaceRequest{Namespace: namespace, Id: "x"}, nil},
		"namespaces":        {api.WorkflowServicePrefix + "ListNamespaces", &workflowservice.ListNamespacesRequest{}, []Identity{viewer, repairer, admin, operator}},
		"search attributes": {api.OperatorServicePrefix + "AddSearchAttributes", &operatorservice.AddSearchAttributesRequest{Namespace: namespace}, []Identity{admin, operator}},
		"remove attributes": {api.OperatorServicePrefix + "RemoveSearchAttributes", &operatorservice.RemoveSearchAttributesRequest{Namespace: namespace}, []Identity{admin}},
		"delete namespace":  {api.OperatorServicePrefix + "DeleteNamespace", &operatorservice.DeleteNamespaceRequest{Namespace: namespace}, []Identity{admin}},
		"delete by id":      {api.OperatorServicePrefix + "DeleteNamespace", &operatorservice.DeleteNamespaceRequest{Namespace: namespace, NamespaceId: "x"}, nil},
		"nexus endpoint":    {api.OperatorServicePrefix + "CreateNexusEndpoint", &operatorservice.CreateNexusEndpointRequest{}, nil},
	} {
		for _, client := range identities {
			if got, want := decide(t, client, test.method, test.request), slices.Contains(test.may, client); got != want {
				t.Errorf("%s by %s: %v", name, client, got)
			}
		}
	}
}

func TestWhatIsForTemporalItselfOrUnknownIsRefusedToAll(t *testing.T) {
	for _, method := range []string{
		api.AdminServicePrefix + "DescribeMutableState",
		api.AdminServicePrefix + "StreamWorkflowReplicationMessages",
		api.NexusServicePrefix + "DispatchNexusTask",
		api.HistoryServicePrefix + "StartWorkflowExecution",
		api.WorkflowServicePrefix + "AMethodOfTomorrow",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"",
	} {
		for _, client := range identities {
			if decide(t, client, method, &workflowservice.ListWorkflowExecutionsRequest{Namespace: namespace}) {
				t.Errorf("%s by %s", method, client)
			}
		}
	}
}

func TestAClientWithoutCertificateMayDoNothing(t *testing.T) {
	for method, request := range methods(t) {
		aimed(request, "garden", "shoot/x")
		if decideFor(t, nil, method, request) || decideFor(t, &authorization.Claims{System: authorization.RoleAdmin}, method, request) {
			t.Error(method)
		}
	}
}

func TestTemporalsOwnServicesMayDoEverything(t *testing.T) {
	claims, err := authorization.NewInternalClaimMapper().GetClaims(&authorization.AuthInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if !decideFor(t, claims, api.WorkflowServicePrefix+"StartWorkflowExecution", &workflowservice.StartWorkflowExecutionRequest{Namespace: "temporal-system"}) {
		t.Error("Temporal's own worker may not start its workflows")
	}
}

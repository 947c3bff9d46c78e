package authorization

import (
	"testing"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
)

const wantCaller = `{"name":"bob","organization":"gardener.cloud:temporal:repairers"}`

func claimed() *commonpb.Header {
	return &commonpb.Header{Fields: map[string]*commonpb.Payload{
		CallerHeader: {Data: []byte(`{"name":"alice"}`)}, "_tracer-data": {Data: []byte("kept")},
	}}
}

func TestWhoAsksIsWrittenOverWhatTheClientSays(t *testing.T) {
	update := &workflowservice.UpdateWorkflowExecutionRequest{
		Request: &updatepb.Request{Input: &updatepb.Input{Header: claimed()}},
	}
	silent := &workflowservice.UpdateWorkflowExecutionRequest{Request: &updatepb.Request{Input: &updatepb.Input{}}}
	start := &workflowservice.StartWorkflowExecutionRequest{Header: claimed()}
	signal := &workflowservice.SignalWorkflowExecutionRequest{Header: claimed()}
	signalWithStart := &workflowservice.SignalWithStartWorkflowExecutionRequest{}
	multiple := &workflowservice.ExecuteMultiOperationRequest{Operations: []*workflowservice.ExecuteMultiOperationRequest_Operation{
		{Operation: &workflowservice.ExecuteMultiOperationRequest_Operation_UpdateWorkflow{UpdateWorkflow: &workflowservice.UpdateWorkflowExecutionRequest{
			Request: &updatepb.Request{Input: &updatepb.Input{Header: claimed()}},
		}}},
	}}
	for _, request := range []any{update, silent, start, signal, signalWithStart, multiple} {
		if err := call(t, NewCaller().Intercept, repairer, request, nil); err != nil {
			t.Fatal(err)
		}
	}
	for name, header := range map[string]*commonpb.Header{
		"update": update.Request.Input.Header, "silent update": silent.Request.Input.Header, "start": start.Header,
		"signal": signal.Header, "signal with start": signalWithStart.Header,
		"update with start": multiple.Operations[0].GetUpdateWorkflow().Request.Input.Header,
	} {
		if got := string(header.GetFields()[CallerHeader].GetData()); got != wantCaller {
			t.Errorf("%s: %s", name, got)
		}
	}
	if string(start.Header.Fields["_tracer-data"].Data) != "kept" {
		t.Error("another header is lost")
	}
}

func TestAnAnswerToATaskKeepsItsHeaders(t *testing.T) {
	attributes := &commandpb.ScheduleActivityTaskCommandAttributes{}
	completed := &workflowservice.RespondWorkflowTaskCompletedRequest{Commands: []*commandpb.Command{{
		Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{ScheduleActivityTaskCommandAttributes: attributes},
	}}}
	if err := call(t, NewCaller().Intercept, operator, completed, nil); err != nil {
		t.Fatal(err)
	}
	if attributes.Header != nil {
		t.Error("an activity got a header")
	}
}

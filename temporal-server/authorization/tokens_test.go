package authorization

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	tokenspb "go.temporal.io/server/api/token/v1"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/tasktoken"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var seedB = Identity{Seeds, "gardener.cloud:system:seed:b", "seed-b", ""}

func newTokens(t *testing.T, keys ...byte) *Tokens {
	t.Helper()
	var all [][]byte
	for _, key := range keys {
		all = append(all, bytes.Repeat([]byte{key}, keyBytes))
	}
	tokens, err := NewTokens(all, log.NewNoopLogger())
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func as(client Identity) context.Context {
	claims := &authorization.Claims{Subject: client.Name, AuthType: string(client.Role), Extensions: client}
	return context.WithValue(context.Background(), authorization.MappedClaims, claims)
}

func call(t *testing.T, interceptor grpc.UnaryServerInterceptor, client Identity, request, response any) error {
	t.Helper()
	_, err := interceptor(as(client), request, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return response, nil })
	return err
}

func plainToken(t *testing.T) []byte {
	t.Helper()
	token, err := tasktoken.NewSerializer().Serialize(&tokenspb.Task{NamespaceId: "n", WorkflowId: "shoot/b", RunId: "r", ScheduledEventId: 7})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// polled returns the token of a task as a client gets it.
func polled(t *testing.T, tokens *Tokens, client Identity) []byte {
	t.Helper()
	response := &workflowservice.PollActivityTaskQueueResponse{TaskToken: plainToken(t)}
	if err := call(t, tokens.Intercept, client, &workflowservice.PollActivityTaskQueueRequest{}, response); err != nil {
		t.Fatal(err)
	}
	return response.GetTaskToken()
}

func TestATokenIsGoodForTheClientThatPolledIt(t *testing.T) {
	tokens := newTokens(t, 1)
	answer := &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: polled(t, tokens, seedA)}
	if err := call(t, tokens.Intercept, seedA, answer, &workflowservice.RespondActivityTaskCompletedResponse{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(answer.GetTaskToken(), plainToken(t)) {
		t.Error("Temporal gets another token than it made")
	}
}

func TestTheInterceptorsThatRunEarlierReadASealedToken(t *testing.T) {
	sealed := polled(t, newTokens(t, 1), seedA)
	token, err := tasktoken.NewSerializer().Deserialize(sealed)
	if err != nil || token.GetWorkflowId() != "shoot/b" || token.GetScheduledEventId() != 7 {
		t.Errorf("%v, %v", token, err)
	}
}

func TestAnyOtherTokenIsRefused(t *testing.T) {
	tokens, plain := newTokens(t, 1), plainToken(t)
	sealed := polled(t, tokens, seedA)
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	otherTask := append(bytes.Clone(plain[:len(plain)-1]), plain[len(plain)-1]^1)
	otherTask = append(otherTask, sealed[len(plain):]...)
	page := &workflowservice.ListWorkflowExecutionsResponse{NextPageToken: plain}
	if err := call(t, tokens.Intercept, seedA, &workflowservice.ListWorkflowExecutionsRequest{}, page); err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string][]byte{
		"plain":             plain,
		"of another client": polled(t, tokens, seedB),
		"of another role":   polled(t, tokens, Identity{Role: Operators, Name: seedA.Name}),
		"of another key":    polled(t, newTokens(t, 2), seedA),
		"changed code":      changed,
		"changed task":      otherTask,
		"sealed as a page":  page.GetNextPageToken(),
		"sealed twice":      append(bytes.Clone(sealed), sealed[len(plain):]...),
		"code alone":        sealed[len(plain):],
		"short":             {1},
	} {
		for _, request := range []proto.Message{
			&workflowservice.RespondActivityTaskCompletedRequest{TaskToken: token},
			&workflowservice.RecordActivityTaskHeartbeatRequest{TaskToken: token},
			&workflowservice.RespondWorkflowTaskCompletedRequest{TaskToken: token},
		} {
			reached := false
			_, err := tokens.Intercept(as(seedA), request, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
				reached = true
				return nil, nil
			})
			if err == nil || reached {
				t.Errorf("%s: %T reached Temporal", name, request)
			}
		}
	}
}

func TestTokensOfTheOlderKeyAreGoodWhileItIsInTheFile(t *testing.T) {
	old := polled(t, newTokens(t, 1), seedA)
	request := &workflowservice.RespondActivityTaskFailedRequest{TaskToken: old}
	if err := call(t, newTokens(t, 2, 1).Intercept, seedA, request, &workflowservice.RespondActivityTaskFailedResponse{}); err != nil {
		t.Error(err)
	}
	request = &workflowservice.RespondActivityTaskFailedRequest{TaskToken: old}
	if err := call(t, newTokens(t, 2).Intercept, seedA, request, &workflowservice.RespondActivityTaskFailedResponse{}); err == nil {
		t.Error("a token of a removed key is good")
	}
}

func TestTasksThatComeWithOtherAnswersAreSealed(t *testing.T) {
	tokens, plain := newTokens(t, 1), plainToken(t)
	workflowTask := func() *workflowservice.PollWorkflowTaskQueueResponse {
		return &workflowservice.PollWorkflowTaskQueueResponse{TaskToken: plain, NextPageToken: plain}
	}
	completed := &workflowservice.RespondWorkflowTaskCompletedResponse{
		WorkflowTask:  workflowTask(),
		ActivityTasks: []*workflowservice.PollActivityTaskQueueResponse{{TaskToken: plain}, {TaskToken: plain}},
	}
	started := &workflowservice.StartWorkflowExecutionResponse{EagerWorkflowTask: workflowTask()}
	multiple := &workflowservice.ExecuteMultiOperationResponse{Responses: []*workflowservice.ExecuteMultiOperationResponse_Response{
		{Response: &workflowservice.ExecuteMultiOperationResponse_Response_StartWorkflow{StartWorkflow: &workflowservice.StartWorkflowExecutionResponse{EagerWorkflowTask: workflowTask()}}},
	}}
	for _, response := range []proto.Message{completed, started, multiple} {
		if err := call(t, tokens.Intercept, operator, &workflowservice.StartWorkflowExecutionRequest{}, response); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range [][]byte{
		completed.WorkflowTask.TaskToken, completed.WorkflowTask.NextPageToken, completed.ActivityTasks[0].TaskToken,
		completed.ActivityTasks[1].TaskToken, started.EagerWorkflowTask.TaskToken,
		multiple.Responses[0].GetStartWorkflow().EagerWorkflowTask.TaskToken,
	} {
		if len(token) != len(plain)+codeLength {
			t.Errorf("a token of %d bytes left unsealed", len(token))
		}
	}
}

// A token field that a later version of Temporal adds must be reviewed: it gets a code, or no client with limited rights
// may send it.
func TestEachTokenOfTheAPIIsKnown(t *testing.T) {
	unsealed := map[string]bool{}
	sealed := 0
	seen := map[protoreflect.FullName]bool{}
	var look func(protoreflect.MessageDescriptor)
	look = func(kind protoreflect.MessageDescriptor) {
		if seen[kind.FullName()] {
			return
		}
		seen[kind.FullName()] = true
		for index := range kind.Fields().Len() {
			field := kind.Fields().Get(index)
			switch {
			case isToken(field):
				sealed++
			case field.Kind() == protoreflect.BytesKind && strings.Contains(string(field.Name()), "token"):
				unsealed[string(field.Name())] = true
			case field.Message() != nil:
				look(field.Message())
			}
		}
	}
	for _, file := range []protoreflect.FileDescriptor{
		workflowservice.File_temporal_api_workflowservice_v1_service_proto,
		operatorservice.File_temporal_api_operatorservice_v1_service_proto,
	} {
		for index := range file.Services().Len() {
			methods := file.Services().Get(index).Methods()
			for position := range methods.Len() {
				look(methods.Get(position).Input())
				look(methods.Get(position).Output())
			}
		}
	}
	var names []string
	for name := range unsealed {
		names = append(names, name)
	}
	slices.Sort(names)
	// These fields belong to schedules, deployments and standalone activities.
	if want := []string{"conflict_token", "long_poll_token"}; !slices.Equal(names, want) || sealed < 40 {
		t.Errorf("%d fields are sealed, not sealed are %v, want %v", sealed, names, want)
	}
}

func TestACallWithoutClaimsIsRefused(t *testing.T) {
	_, err := newTokens(t, 1).Intercept(context.Background(), &workflowservice.ListNamespacesRequest{}, nil, nil)
	if err == nil {
		t.Error("allowed")
	}
}

func TestAKeyFileIsReadOrRefusedWithoutQuotingIt(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, keyBytes))
	path := filepath.Join(t.TempDir(), "keys")
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("new " + key + "\n\nold " + key + "\n")
	if keys, err := ReadKeys(path); err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for _, content := range []string{key, "a " + key[:8], "a b c", "SENTINEL not-base64!"} {
		write(content)
		if _, err := ReadKeys(path); err == nil || strings.Contains(err.Error(), "SENTINEL") || strings.Contains(err.Error(), key[:8]) {
			t.Errorf("%v", err)
		}
	}
	if _, err := NewTokens(nil, log.NewNoopLogger()); err == nil {
		t.Error("no key is enough")
	}
}

package authorization

import (
	"context"
	"encoding/json"

	commonpb "go.temporal.io/api/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// CallerHeader is the header of workflows, signals, updates and queries that names the client that requested them.
const CallerHeader = "gardener-caller"

// Caller writes the client's name into each request that may have headers. It overwrites a value from the client.
type Caller struct {
	headers fields
}

// NewCaller returns the interceptor.
func NewCaller() *Caller {
	name := (&commonpb.Header{}).ProtoReflect().Descriptor().FullName()
	return &Caller{fields{wanted: func(field protoreflect.FieldDescriptor) bool {
		return field.Message() != nil && field.Message().FullName() == name && !field.IsList() && !field.IsMap()
	}}}
}

// Intercept is a grpc.UnaryServerInterceptor; it runs after Temporal's own authorization.
//
// It does not change a worker's answer to a task: headers in the answer belong to calls that the workflow itself makes,
// and the workflow's start names the client that requested the workflow.
func (c *Caller) Intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	role, name, known := clientOf(ctx)
	_, answersTask := request.(interface{ GetTaskToken() []byte })
	if message, isMessage := request.(proto.Message); isMessage && known && !answersTask {
		payload, err := callerPayload(role, name)
		if err != nil {
			return nil, err
		}
		err = c.headers.visit(message.ProtoReflect(), func(in protoreflect.Message, field protoreflect.FieldDescriptor) error {
			header, _ := in.Mutable(field).Message().Interface().(*commonpb.Header)
			if header.Fields == nil {
				header.Fields = map[string]*commonpb.Payload{}
			}
			header.Fields[CallerHeader] = payload
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return handler(ctx, request)
}

func callerPayload(role, name string) (*commonpb.Payload, error) {
	data, err := json.Marshal(map[string]string{"organization": role, "name": name})
	return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: data}, err
}

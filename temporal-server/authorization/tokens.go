package authorization

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/log"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Temporal's tokens name a task, or the next page of a history, in plain text. A client could forge a token for a task
// or a history of another client. So a frontend appends to each token an authentication code over token and client, and
// accepts a token only with the code of the client that sends it. Frontends share the keys and keep no other state, so
// each frontend accepts the tokens of all others, also after a restart.
//
// The code is a protobuf field that no message of Temporal has: interceptors that run earlier and read a token skip it.

const (
	keyBytes  = 32
	codeField = 15001
)

var (
	codeStart  = protowire.AppendVarint(protowire.AppendTag(nil, codeField, protowire.BytesType), sha256.Size)
	codeLength = len(codeStart) + sha256.Size

	errForeignToken = serviceerror.NewPermissionDenied("The token was not given to this client.", "")
)

// Tokens appends the code to tokens in responses, and checks and removes it in requests.
type Tokens struct {
	// keys are the keys of the codes: the first one makes codes, all of them are accepted.
	keys   [][]byte
	logger log.Logger
	fields fields
}

// NewTokens returns the interceptor for keys of 32 bytes each.
func NewTokens(keys [][]byte, logger log.Logger) (*Tokens, error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no key for task tokens")
	}
	for _, key := range keys {
		if len(key) != keyBytes {
			return nil, fmt.Errorf("a key for task tokens has %d bytes, must have %d", len(key), keyBytes)
		}
	}
	return &Tokens{keys: keys, logger: logger, fields: fields{wanted: isToken}}, nil
}

// ReadKeys reads a file with lines "<key id> <base64 of 32 bytes>". Its errors never quote the file's content.
func ReadKeys(path string) ([][]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for number, line := range strings.Split(string(content), "\n") {
		parts := strings.Fields(line)
		if len(parts) == 0 {
			continue
		}
		if len(parts) != 2 {
			return nil, fmt.Errorf("%s, line %d: must be \"<key id> <base64>\"", path, number+1)
		}
		key, err := base64.StdEncoding.DecodeString(parts[1])
		if err != nil || len(key) != keyBytes {
			return nil, fmt.Errorf("%s, line %d: must be base64 of %d bytes", path, number+1, keyBytes)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Intercept is a grpc.UnaryServerInterceptor; it runs after Temporal's own authorization.
func (t *Tokens) Intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	role, name, known := clientOf(ctx)
	if !known {
		return nil, errForeignToken
	}
	if message, isMessage := request.(proto.Message); isMessage {
		err := t.fields.visit(message.ProtoReflect(), func(in protoreflect.Message, field protoreflect.FieldDescriptor) error {
			token, err := t.open(in.Get(field).Bytes(), field, role, name)
			if err == nil && len(token) > 0 {
				in.Set(field, protoreflect.ValueOfBytes(token))
			}
			return err
		})
		if err != nil {
			logRefusal(ctx, t.logger, role, name, info.FullMethod, errForeignToken.Error())
			return nil, err
		}
	}
	response, err := handler(ctx, request)
	if message, isMessage := response.(proto.Message); isMessage && err == nil {
		err = t.fields.visit(message.ProtoReflect(), func(in protoreflect.Message, field protoreflect.FieldDescriptor) error {
			if token := in.Get(field).Bytes(); len(token) > 0 {
				in.Set(field, protoreflect.ValueOfBytes(t.seal(token, field, role, name)))
			}
			return nil
		})
	}
	return response, err
}

func isToken(field protoreflect.FieldDescriptor) bool {
	named := field.Name() == "task_token" || field.Name() == "next_page_token"
	return named && field.Kind() == protoreflect.BytesKind && !field.IsList()
}

func (t *Tokens) seal(token []byte, field protoreflect.FieldDescriptor, role, name string) []byte {
	return bytes.Join([][]byte{token, codeStart, code(t.keys[0], token, field, role, name)}, nil)
}

// open checks and removes the code. It returns an empty token as it is: that means "the first page", or "no task", and
// Temporal handles it.
func (t *Tokens) open(sealed []byte, field protoreflect.FieldDescriptor, role, name string) ([]byte, error) {
	if len(sealed) == 0 {
		return sealed, nil
	}
	end := len(sealed) - codeLength
	if end < 0 || !bytes.Equal(sealed[end:end+len(codeStart)], codeStart) {
		return nil, errForeignToken
	}
	token, given := sealed[:end:end], sealed[end+len(codeStart):]
	for _, key := range t.keys {
		if hmac.Equal(given, code(key, token, field, role, name)) {
			return token, nil
		}
	}
	return nil, errForeignToken
}

func code(key, token []byte, field protoreflect.FieldDescriptor, role, name string) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte(field.Name()), []byte(role), []byte(name), token} {
		// The length of each part is included, so that other parts cannot have the same code.
		_ = binary.Write(mac, binary.BigEndian, uint64(len(part)))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

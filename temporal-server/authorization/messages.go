package authorization

import (
	"context"
	"sync"

	"go.temporal.io/server/common/authorization"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// clientOf returns role and name of a call's client, which the claim mapper has set.
func clientOf(ctx context.Context) (role, name string, known bool) {
	claims, _ := ctx.Value(authorization.MappedClaims).(*authorization.Claims)
	if claims == nil {
		return "", "", false
	}
	return claims.AuthType, claims.Subject, true
}

// fields finds the wanted fields in a message, at any depth. It does not read parts that cannot hold such a field,
// because a history may hold thousands of events.
type fields struct {
	wanted func(protoreflect.FieldDescriptor) bool
	known  sync.Map
}

// visit calls do for each wanted field, with the message that may hold it. It stops at the first error.
func (f *fields) visit(
	message protoreflect.Message, do func(protoreflect.Message, protoreflect.FieldDescriptor) error,
) error {
	if !f.within(message.Descriptor()) {
		return nil
	}
	all := message.Descriptor().Fields()
	for index := range all.Len() {
		field := all.Get(index)
		if f.wanted(field) {
			if err := do(message, field); err != nil {
				return err
			}
			continue
		}
		if !message.Has(field) {
			continue
		}
		var err error
		switch value := message.Get(field); {
		case field.IsMap():
			if field.MapValue().Message() == nil || !f.within(field.MapValue().Message()) {
				continue
			}
			value.Map().Range(func(_ protoreflect.MapKey, each protoreflect.Value) bool {
				err = f.visit(each.Message(), do)
				return err == nil
			})
		case field.Message() == nil || !f.within(field.Message()):
			continue
		case field.IsList():
			for position := 0; position < value.List().Len() && err == nil; position++ {
				err = f.visit(value.List().Get(position).Message(), do)
			}
		default:
			err = f.visit(value.Message(), do)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// within reports whether a message of this type can hold a wanted field.
func (f *fields) within(kind protoreflect.MessageDescriptor) bool {
	if known, found := f.known.Load(kind.FullName()); found {
		return known.(bool)
	}
	holds := f.reaches(kind, map[protoreflect.FullName]bool{})
	f.known.Store(kind.FullName(), holds)
	return holds
}

func (f *fields) reaches(kind protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[kind.FullName()] {
		return false
	}
	seen[kind.FullName()] = true
	all := kind.Fields()
	for index := range all.Len() {
		field := all.Get(index)
		if f.wanted(field) || field.Message() != nil && f.reaches(field.Message(), seen) {
			return true
		}
	}
	return false
}

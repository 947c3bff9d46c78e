package authorization

import (
	"context"
	"fmt"
	"strings"

	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/api"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
	"google.golang.org/grpc/peer"
)

// Authorizer allows each role the methods that it needs, in our namespaces.
//
// A method that a later version of Temporal adds is refused to gardenlets and extensions until it is in their tables. It
// is refused to all other roles until Temporal's own table gives the method's scope and access.
type Authorizer struct {
	namespaces map[string]bool
	logger     log.Logger
}

// NewAuthorizer returns an Authorizer that gives clients access to these namespaces only.
func NewAuthorizer(namespaces []string, logger log.Logger) *Authorizer {
	authorizer := &Authorizer{namespaces: map[string]bool{}, logger: logger}
	for _, namespace := range namespaces {
		authorizer.namespaces[namespace] = true
	}
	return authorizer
}

// Authorize decides about a call. It logs the reason of a refusal, and the client gets the reason, too.
func (a *Authorizer) Authorize(
	ctx context.Context, claims *authorization.Claims, target *authorization.CallTarget,
) (authorization.Result, error) {
	reason := a.refusal(claims, target)
	if reason == "" {
		return authorization.Result{Decision: authorization.DecisionAllow}, nil
	}
	role, name := "no certificate", ""
	if claims != nil {
		role, name = claims.AuthType, claims.Subject
	}
	logRefusal(ctx, a.logger, role, name, target.APIName, reason)
	return authorization.Result{Decision: authorization.DecisionDeny, Reason: reason}, nil
}

func logRefusal(ctx context.Context, logger log.Logger, role, name, method, reason string) {
	address := ""
	if from, known := peer.FromContext(ctx); known && from.Addr != nil {
		address = from.Addr.String()
	}
	logger.Warn("Call refused.",
		tag.String("client", name), tag.String("role", role), tag.String("address", address),
		tag.String("method", method), tag.String("reason", reason))
}

// refusal returns the reason to refuse a call; empty if the call is allowed.
func (a *Authorizer) refusal(claims *authorization.Claims, target *authorization.CallTarget) string {
	if claims == nil {
		return "the client has no certificate"
	}
	if isServer(claims) {
		return ""
	}
	if reason, isRefused := claims.Extensions.(tokenRefused); isRefused {
		return string(reason)
	}
	client, known := claims.Extensions.(Identity)
	if !known {
		return "the client's certificate names no role"
	}
	if authorization.IsHealthCheckAPI(target.APIName) {
		return ""
	}
	if client.Role == Gateways {
		return "a gateway may do nothing without the token of a person"
	}
	service, method := api.ServiceName(target.APIName), api.MethodName(target.APIName)
	if service != api.WorkflowServicePrefix && service != api.OperatorServicePrefix {
		return "the method is for Temporal's own services"
	}
	metadata := api.GetMethodMetadata(target.APIName)
	switch metadata.Scope {
	case api.ScopeCluster:
		if metadata.Access == api.AccessReadOnly && client.Queue == "" {
			return ""
		}
		return "the method is about the whole Temporal cluster"
	case api.ScopeNamespace:
		if !a.namespaces[target.Namespace] || namesNamespaceByID(target.Request) {
			return fmt.Sprintf("namespace %q is not open to clients", target.Namespace)
		}
	default:
		return "the method is unknown"
	}
	switch client.Role {
	case Admins:
		return ""
	case Operators:
		return unless(service == api.WorkflowServicePrefix || forSetup[method], client, method)
	case Repairers:
		return unless(metadata.Access == api.AccessReadOnly || forRepairs[method], client, method)
	case Viewers:
		return unless(metadata.Access == api.AccessReadOnly, client, method)
	case Seeds, Extensions:
		rule, listed := rules[client.Role][method]
		if !listed || service != api.WorkflowServicePrefix {
			return unless(false, client, method)
		}
		return rule(client, target.Request)
	default:
		return unless(false, client, method)
	}
}

var (
	// forSetup are the methods of OperatorService that the garden's setup calls.
	forSetup = map[string]bool{"AddSearchAttributes": true, "ListSearchAttributes": true}
	// forRepairs are the methods with which a person repairs an operation.
	forRepairs = map[string]bool{"UpdateWorkflowExecution": true}
)

func unless(allowed bool, client Identity, method string) string {
	if allowed {
		return ""
	}
	kind := string(client.Role)
	return fmt.Sprintf("%s may not call %s", kind[strings.LastIndex(kind, ":")+1:], method)
}

// isServer reports whether Temporal's own services make the call. The internal frontend marks such calls, the frontend
// never does.
func isServer(claims *authorization.Claims) bool {
	return claims.System == authorization.RoleAdmin && claims.AuthType == authorization.InternalPrincipalType
}

// namesNamespaceByID reports whether a request names a namespace by its ID: it may differ from the checked namespace.
func namesNamespaceByID(request any) bool {
	switch request := request.(type) {
	case *workflowservice.DescribeNamespaceRequest:
		return request.GetId() != ""
	case *operatorservice.DeleteNamespaceRequest:
		return request.GetNamespaceId() != ""
	default:
		return false
	}
}

// A program with Gardener's own client: tests ask our garden with it, as programs that are written for Gardener do.
//
// It reads requests from stdin, one JSON object a line, and answers each with a line. The types are Gardener's, so it
// knows what Gardener's API has: an answer names each field of an object of ours that Gardener's types lack. With the
// argument "fields" it prints the fields of Gardener's types instead.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	authentication "github.com/gardener/gardener/pkg/apis/authentication/v1alpha1"
	gardencore "github.com/gardener/gardener/pkg/apis/core/v1beta1"
	security "github.com/gardener/gardener/pkg/apis/security/v1alpha1"
	coreclient "github.com/gardener/gardener/pkg/client/core/clientset/versioned"
	securityclient "github.com/gardener/gardener/pkg/client/security/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const watchSeconds = 30

// A request of the test.
type request struct {
	Do        string          `json:"do"`
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Seconds   int64           `json:"seconds"`
	Object    json.RawMessage `json:"object"`
}

type answer struct {
	Object any `json:"object,omitempty"`
	// Unknown names the fields of objects of the garden that Gardener's types lack.
	Unknown []string       `json:"unknown,omitempty"`
	Error   *metav1.Status `json:"error,omitempty"`
	Failure string         `json:"failure,omitempty"`
}

// typed is what Gardener's clientset offers for each kind.
type typed[T, L runtime.Object] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Get(context.Context, string, metav1.GetOptions) (T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

func serve[T, L runtime.Object](ctx context.Context, of typed[T, L], asked request) (any, error) {
	switch asked.Do {
	case "create", "update":
		decoded, err := decode(asked.Object)
		if err != nil {
			return nil, err
		}
		object, ok := decoded.(T)
		if !ok {
			return nil, fmt.Errorf("the object is a %T, and the request is of %s", decoded, asked.Kind)
		}
		if asked.Do == "create" {
			return of.Create(ctx, object, metav1.CreateOptions{})
		}
		return of.Update(ctx, object, metav1.UpdateOptions{})
	case "get":
		return of.Get(ctx, asked.Name, metav1.GetOptions{})
	case "list":
		return of.List(ctx, metav1.ListOptions{})
	case "watch": // until the first event of the object with this name
		seconds := int64(watchSeconds)
		events, err := of.Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds})
		if err != nil {
			return nil, err
		}
		defer events.Stop()
		for event := range events.ResultChan() {
			if object, ok := event.Object.(metav1.Object); ok && object.GetName() == asked.Name {
				return map[string]any{"type": event.Type, "object": event.Object}, nil
			}
		}
		return nil, errors.New("the watch ended without an event of the object")
	case "delete":
		return nil, of.Delete(ctx, asked.Name, metav1.DeleteOptions{})
	}
	return nil, fmt.Errorf("no request %q", asked.Do)
}

// garden has the clients of the garden.
type garden struct {
	core     coreclient.Interface
	security securityclient.Interface
	// The one by which gardenctl, gardenlogin and Gardener's own tests ask for subresources.
	subresources client.Client
}

func (g garden) ask(ctx context.Context, asked request) (any, error) {
	shoot := &gardencore.Shoot{ObjectMeta: metav1.ObjectMeta{Namespace: asked.Namespace, Name: asked.Name}}
	switch asked.Do {
	case "adminkubeconfig":
		made := &authentication.AdminKubeconfigRequest{
			Spec: authentication.AdminKubeconfigRequestSpec{ExpirationSeconds: &asked.Seconds},
		}
		return made, g.subresources.SubResource(asked.Do).Create(ctx, shoot, made)
	case "viewerkubeconfig":
		made := &authentication.ViewerKubeconfigRequest{
			Spec: authentication.ViewerKubeconfigRequestSpec{ExpirationSeconds: &asked.Seconds},
		}
		return made, g.subresources.SubResource(asked.Do).Create(ctx, shoot, made)
	case "token":
		made := &security.TokenRequest{Spec: security.TokenRequestSpec{ExpirationSeconds: &asked.Seconds}}
		if len(asked.Object) > 0 {
			made.Spec.ContextObject = &security.ContextObject{}
			if err := json.Unmarshal(asked.Object, made.Spec.ContextObject); err != nil {
				return nil, err
			}
		}
		return g.security.SecurityV1alpha1().WorkloadIdentities(asked.Namespace).
			CreateToken(ctx, asked.Name, made, metav1.CreateOptions{})
	}
	switch core := g.core.CoreV1beta1(); asked.Kind {
	case "Shoot":
		return serve(ctx, core.Shoots(asked.Namespace), asked)
	case "Project":
		return serve(ctx, core.Projects(), asked)
	case "Seed":
		return serve(ctx, core.Seeds(), asked)
	case "CloudProfile":
		return serve(ctx, core.CloudProfiles(), asked)
	case "NamespacedCloudProfile":
		return serve(ctx, core.NamespacedCloudProfiles(asked.Namespace), asked)
	case "Quota":
		return serve(ctx, core.Quotas(asked.Namespace), asked)
	case "CredentialsBinding":
		return serve(ctx, g.security.SecurityV1alpha1().CredentialsBindings(asked.Namespace), asked)
	case "WorkloadIdentity":
		return serve(ctx, g.security.SecurityV1alpha1().WorkloadIdentities(asked.Namespace), asked)
	}
	return nil, fmt.Errorf("no client of kind %q", asked.Kind)
}

func clients(config *rest.Config) (garden, error) {
	core, err := coreclient.NewForConfig(config)
	if err != nil {
		return garden{}, err
	}
	ofSecurity, err := securityclient.NewForConfig(config)
	if err != nil {
		return garden{}, err
	}
	subresources, err := client.New(config, client.Options{Scheme: scheme})
	return garden{core, ofSecurity, subresources}, err
}

func answers() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	seen := &recorder{}
	config.Wrap(seen.around)
	made, err := clients(config)
	if err != nil {
		return err
	}
	lines, output := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*watchSeconds*time.Second)
		var said answer
		said.Object, err = made.ask(ctx, asked)
		cancel()
		said.Unknown = seen.unknown()
		var refusal apierrors.APIStatus
		if errors.As(err, &refusal) {
			status := refusal.Status()
			said.Error, said.Object = &status, nil
		} else if err != nil {
			said.Failure, said.Object = err.Error(), nil
		}
		if err := output.Encode(said); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	run := answers
	if len(os.Args) > 1 && os.Args[1] == "fields" {
		run = printFields
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gardener-client:", err)
		os.Exit(1)
	}
}

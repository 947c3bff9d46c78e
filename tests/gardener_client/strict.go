package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	authentication "github.com/gardener/gardener/pkg/apis/authentication/v1alpha1"
	gardencorev1 "github.com/gardener/gardener/pkg/apis/core/v1"
	gardencore "github.com/gardener/gardener/pkg/apis/core/v1beta1"
	extensions "github.com/gardener/gardener/pkg/apis/extensions/v1alpha1"
	operations "github.com/gardener/gardener/pkg/apis/operations/v1alpha1"
	resources "github.com/gardener/gardener/pkg/apis/resources/v1alpha1"
	security "github.com/gardener/gardener/pkg/apis/security/v1alpha1"
	seedmanagement "github.com/gardener/gardener/pkg/apis/seedmanagement/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// scheme has all kinds of Gardener whose types we compare with ours.
var scheme = runtime.NewScheme()

var strictly runtime.Decoder

func init() {
	for _, add := range []func(*runtime.Scheme) error{
		authentication.AddToScheme,
		gardencore.AddToScheme,
		gardencorev1.AddToScheme,
		extensions.AddToScheme,
		operations.AddToScheme,
		resources.AddToScheme,
		security.AddToScheme,
		seedmanagement.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	strictly = serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// decode reads an object as Gardener's types have it; a field that they lack is an error.
func decode(content []byte) (runtime.Object, error) {
	object, _, err := strictly.Decode(content, nil, nil)
	return object, err
}

// recorder keeps the answers of the garden.
type recorder struct {
	mutex  sync.Mutex
	bodies []*bytes.Buffer
}

func (r *recorder) around(next http.RoundTripper) http.RoundTripper { return &transport{next, r} }

type transport struct {
	next http.RoundTripper
	seen *recorder
}

// RoundTrip sends a request, and copies what the client then reads of the answer. Discovery has kinds of its own.
func (t *transport) RoundTrip(sent *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(sent)
	discovery := strings.Count(sent.URL.Path, "/") < 4
	if err != nil || discovery || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		return answer, err
	}
	t.seen.mutex.Lock()
	defer t.seen.mutex.Unlock()
	copied := &bytes.Buffer{}
	t.seen.bodies = append(t.seen.bodies, copied)
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(answer.Body, copied), answer.Body}
	return answer, nil
}

// unknown decodes the answers since its last call strictly, and returns what failed.
func (r *recorder) unknown() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var found []string
	for _, body := range r.bodies {
		values := json.NewDecoder(body)
		for {
			var value json.RawMessage
			if values.Decode(&value) != nil {
				break // the end, or a value of a watch of which the client has read only a part
			}
			var event struct {
				Type   string          `json:"type"`
				Object json.RawMessage `json:"object"`
			}
			if json.Unmarshal(value, &event) == nil && event.Type != "" && event.Object != nil {
				value = event.Object
			}
			if _, err := decode(value); err != nil {
				found = append(found, fmt.Sprint(err))
			}
		}
	}
	r.bodies = nil
	return found
}

package authorization

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.temporal.io/server/common/api"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/log"
)

const audience = "temporal"

// provider is an issuer of tokens: a TLS server with a discovery document and keys.
type provider struct {
	*httptest.Server
	keys  atomic.Pointer[jose.JSONWebKeySet]
	name  string
	broke atomic.Bool
}

func newProvider(t *testing.T, keys ...jose.JSONWebKey) *provider {
	t.Helper()
	made := &provider{}
	made.keys.Store(&jose.JSONWebKeySet{Keys: keys})
	made.Server = httptest.NewTLSServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		switch {
		case made.broke.Load():
			answer.WriteHeader(http.StatusInternalServerError)
			_, _ = answer.Write([]byte(`{"keys": []}`))
		case request.URL.Path == discoveryPath:
			_ = json.NewEncoder(answer).Encode(map[string]string{"issuer": made.name, "jwks_uri": made.URL + "/keys"})
		case request.URL.Path == "/keys":
			_ = json.NewEncoder(answer).Encode(made.keys.Load())
		case request.URL.Path == "/moved"+discoveryPath:
			http.Redirect(answer, request, discoveryPath, http.StatusFound)
		default:
			answer.WriteHeader(http.StatusNotFound)
		}
	}))
	made.name = made.URL
	t.Cleanup(made.Close)
	return made
}

func (p *provider) caFile(t *testing.T) string {
	t.Helper()
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})))
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newRSA(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newECDSA(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(id string, key crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{KeyID: id, Key: key.Public(), Use: "sig"}
}

func signed(t *testing.T, algorithm jose.SignatureAlgorithm, key any, id string, claims map[string]any, headers map[jose.HeaderKey]any) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: maps.Clone(headers)}
	if id != "" {
		options.WithHeader("kid", id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	object, err := signer.Sign(content)
	if err != nil {
		t.Fatal(err)
	}
	token, err := object.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func unsigned(t *testing.T, algorithm string, claims map[string]any) string {
	t.Helper()
	content, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"`+algorithm+`","kid":"rsa"}`)) + "." + encode(content) + "."
}

func config(issuer *provider, t *testing.T) TokenConfig {
	t.Helper()
	var made TokenConfig
	made.Issuer.URL, made.Issuer.Audience, made.Issuer.CertificateAuthorityFile = issuer.URL, audience, issuer.caFile(t)
	made.Claims.Username, made.Claims.Groups = "sub", "groups"
	made.Roles.Look, made.Roles.Repair, made.Roles.Administer = []string{"all"}, []string{"on-call"}, []string{"platform"}
	return made
}

// peopleBy returns a People whose issuer's keys have been read.
func peopleBy(t *testing.T, config TokenConfig) *People {
	t.Helper()
	found, err := NewPeople(t.Context(), config, log.NewNoopLogger())
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { _, err := found.issuer.Keys(); return err == nil })
	return found
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 20 s")
		}
	}
}

func claimsOfPerson(issuer string, changes map[string]any) map[string]any {
	claims := map[string]any{
		"iss": issuer, "aud": audience, "sub": "alice", "groups": []string{"guests", "on-call"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
	}
	for name, value := range changes {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	return claims
}

func TestATokenNamesAPersonAndTheRoleThatMayDoMost(t *testing.T) {
	rsaKey, ecKey := newRSA(t, rsaBits), newECDSA(t, elliptic.P256())
	issuer := newProvider(t, public("rsa", rsaKey), public("ec", ecKey))
	found := peopleBy(t, config(issuer, t))
	for name, test := range map[string]struct {
		changes map[string]any
		want    Role
	}{
		"one of two groups": {nil, Repairers},
		"one group as text": {map[string]any{"groups": "all"}, Viewers},
		"all groups":        {map[string]any{"groups": []string{"all", "on-call", "platform"}}, Admins},
		"two audiences":     {map[string]any{"aud": []string{"other", audience}}, Repairers},
	} {
		for _, token := range []string{
			signed(t, jose.RS256, rsaKey, "rsa", claimsOfPerson(issuer.URL, test.changes), nil),
			signed(t, jose.ES256, ecKey, "ec", claimsOfPerson(issuer.URL, test.changes), nil),
		} {
			person, err := found.identityOf("Bearer " + token)
			if err != nil || person != (Identity{Role: test.want, Name: "alice"}) {
				t.Errorf("%s: %v, %v", name, person, err)
			}
		}
	}
}

func TestAnyOtherTokenIsRefusedAndTheReasonHoldsNoneOfIt(t *testing.T) {
	rsaKey, ecKey, foreign := newRSA(t, rsaBits), newECDSA(t, elliptic.P256()), newRSA(t, rsaBits)
	issuer := newProvider(t, public("rsa", rsaKey), public("ec", ecKey))
	found := peopleBy(t, config(issuer, t))
	encoded, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: encoded})
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	person := func(changes map[string]any) map[string]any { return claimsOfPerson(issuer.URL, changes) }
	by := func(changes map[string]any) string { return signed(t, jose.RS256, rsaKey, "rsa", person(changes), nil) }
	good := by(nil)
	parts := strings.Split(good, ".")
	for name, test := range map[string]struct{ header, reason string }{
		"wrong issuer":         {"Bearer " + by(map[string]any{"iss": "https://evil.example.org"}), "another issuer"},
		"no issuer":            {"Bearer " + by(map[string]any{"iss": nil}), "another issuer"},
		"wrong audience":       {"Bearer " + by(map[string]any{"aud": "kubernetes"}), "another audience"},
		"no audience":          {"Bearer " + by(map[string]any{"aud": nil}), "another audience"},
		"expired":              {"Bearer " + by(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "expired"},
		"without end":          {"Bearer " + by(map[string]any{"exp": nil}), "when it expires"},
		"not yet":              {"Bearer " + by(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "not valid yet"},
		"issued in the future": {"Bearer " + by(map[string]any{"iat": time.Now().Add(time.Hour).Unix()}), "not valid yet"},
		"unknown group":        {"Bearer " + by(map[string]any{"groups": []string{"guests"}}), "no group"},
		"no group":             {"Bearer " + by(map[string]any{"groups": nil}), "no group"},
		"groups in one text":   {"Bearer " + by(map[string]any{"groups": "on-call,platform"}), "no group"},
		"groups as an object":  {"Bearer " + by(map[string]any{"groups": map[string]bool{"on-call": true}}), "no group"},
		"no name":              {"Bearer " + by(map[string]any{"sub": nil}), "no plain text"},
		"a number as name":     {"Bearer " + by(map[string]any{"sub": []string{"alice"}}), "not signed by a key"},
		"a name of two lines":  {"Bearer " + by(map[string]any{"sub": "alice\nbob"}), "no plain text"},
		"a long name":          {"Bearer " + by(map[string]any{"sub": strings.Repeat("a", 256)}), "no plain text"},
		"a seed's name":        {"Bearer " + by(map[string]any{"sub": "gardener.cloud:system:seed:a"}), "name of machines"},
		"alg none":             {"Bearer " + unsigned(t, "none", person(nil)), "no JSON Web Token"},
		"alg None":             {"Bearer " + unsigned(t, "None", person(nil)), "no JSON Web Token"},
		"RS256 unsigned":       {"Bearer " + unsigned(t, "RS256", person(nil)), "not signed by a key"},
		"HS256 by the public key in PEM": {
			"Bearer " + signed(t, jose.HS256, publicPEM, "rsa", person(nil), nil), "no JSON Web Token",
		},
		"HS256 by the public key in DER": {
			"Bearer " + signed(t, jose.HS256, encoded, "rsa", person(nil), nil), "no JSON Web Token",
		},
		"another key by its own header": {
			"Bearer " + signed(t, jose.RS256, foreign, "rsa", person(nil), map[jose.HeaderKey]any{"jwk": public("rsa", foreign)}),
			"not signed by a key",
		},
		"keys of another server": {
			"Bearer " + signed(t, jose.RS256, foreign, "x", person(nil), map[jose.HeaderKey]any{"jku": "https://evil.example.org"}),
			"not signed by a key",
		},
		"another key":           {"Bearer " + signed(t, jose.RS256, foreign, "rsa", person(nil), nil), "not signed by a key"},
		"unknown key ID":        {"Bearer " + signed(t, jose.RS256, rsaKey, "old", person(nil), nil), "not signed by a key"},
		"no key ID":             {"Bearer " + signed(t, jose.RS256, rsaKey, "", person(nil), nil), "not signed by a key"},
		"key of another kind":   {"Bearer " + signed(t, jose.ES256, ecKey, "rsa", person(nil), nil), "not signed by a key"},
		"RS512":                 {"Bearer " + signed(t, jose.RS512, rsaKey, "rsa", person(nil), nil), "no JSON Web Token"},
		"EdDSA":                 {"Bearer " + signed(t, jose.EdDSA, edKey, "ed", person(nil), nil), "no JSON Web Token"},
		"changed claims":        {"Bearer " + parts[0] + "." + parts[1] + "A." + parts[2], "not signed by a key"},
		"no signature":          {"Bearer " + parts[0] + "." + parts[1] + ".", "not signed by a key"},
		"a large one":           {"Bearer " + by(map[string]any{"x": strings.Repeat("x", tokenBytes)}), "more than"},
		"not base64":            {"Bearer SENTINEL", "no JSON Web Token"},
		"empty":                 {"Bearer ", "no JSON Web Token"},
		"a password":            {"Basic " + good, "no bearer token"},
		"no scheme":             {good, "no bearer token"},
		"two tokens by a comma": {"Bearer " + good + ", Bearer " + good, "no JSON Web Token"},
	} {
		claims, err := ClaimMapper{found}.GetClaims(withToken(t, Gateways, "ui", test.header))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		reason, refused := claims.Extensions.(tokenRefused)
		if !refused || !strings.Contains(string(reason), test.reason) {
			t.Errorf("%s: %v", name, claims.Extensions)
		}
		if strings.Contains(string(reason), "SENTINEL") || strings.Contains(string(reason), "alice") {
			t.Errorf("%s: the reason quotes the token: %s", name, reason)
		}
		if decideFor(t, claims, api.WorkflowServicePrefix+"GetSystemInfo", nil) {
			t.Errorf("%s: a call is allowed", name)
		}
	}
}

func TestAnEmailNamesAPersonIfTheIssuerHasVerifiedIt(t *testing.T) {
	key := newRSA(t, rsaBits)
	issuer := newProvider(t, public("rsa", key))
	by := config(issuer, t)
	by.Claims.Username = "email"
	found := peopleBy(t, by)
	for verified, want := range map[any]bool{true: true, false: false, "true": false, nil: false} {
		changes := map[string]any{"email": "alice@example.org", "email_verified": verified}
		person, err := found.identityOf("Bearer " + signed(t, jose.RS256, key, "rsa", claimsOfPerson(issuer.URL, changes), nil))
		if (err == nil) != want || want && person.Name != "alice@example.org" {
			t.Errorf("%v: %v, %v", verified, person, err)
		}
	}
}

func TestATokenCountsWithAGatewaysCertificateAlone(t *testing.T) {
	key := newRSA(t, rsaBits)
	issuer := newProvider(t, public("rsa", key))
	mapper := ClaimMapper{peopleBy(t, config(issuer, t))}
	admin := "Bearer " + signed(t, jose.RS256, key, "rsa", claimsOfPerson(issuer.URL, map[string]any{"groups": "platform"}), nil)
	list := api.WorkflowServicePrefix + "ListWorkflowExecutions"
	for _, test := range []struct {
		role  Role
		name  string
		token string
		want  bool
	}{
		{Gateways, "ui", admin, true},
		{Gateways, "ui", "", false},
		{Seeds, "gardener.cloud:system:seed:a", admin, false},
		{Extensions, "gardener.cloud:system:extension:provider-local:a", admin, false},
		{Operators, "gardener-controller-manager", admin, false},
		{Operators, "gardener-controller-manager", "", true},
		{Viewers, "bob", admin, false},
		{Admins, "carol", admin, false},
		{Admins, "carol", "", true},
	} {
		claims, err := mapper.GetClaims(withToken(t, test.role, test.name, test.token))
		if err != nil {
			t.Fatal(err)
		}
		if got := decideFor(t, claims, list, requestOf(t, list)); got != test.want {
			t.Errorf("%s of %s, token %v: %v (%v)", test.name, test.role, test.token != "", got, claims.Extensions)
		}
	}
	claims, err := ClaimMapper{}.GetClaims(withToken(t, Gateways, "ui", admin))
	if err != nil || decideFor(t, claims, list, requestOf(t, list)) {
		t.Errorf("a server that knows no issuer takes a token: %v, %v", claims, err)
	}
}

func TestAGatewayMayNothingByItself(t *testing.T) {
	expect(t, "gateway", allowed(t, Identity{Role: Gateways, Name: "ui"}, "seed-a", "shoot/project/name/uid"), "GetSystemInfo")
	if !decide(t, Identity{Role: Gateways, Name: "ui"}, "/grpc.health.v1.Health/Check", nil) {
		t.Error("a gateway cannot ask whether Temporal lives")
	}
}

func requestOf(t *testing.T, method string) any {
	t.Helper()
	return aimed(methods(t)[method], "garden", "shoot/project/name/uid")
}

func TestKeysOfAnIssuerAreThoseThatSignTokens(t *testing.T) {
	good, short, curve := newRSA(t, rsaBits), newRSA(t, 1024), newECDSA(t, elliptic.P384())
	unnamed, encrypting, other := public("", good), public("encrypting", good), public("other", good)
	encrypting.Use, other.Algorithm = "enc", "PS256"
	issuer := newProvider(
		t, public("good", good), public("short", short), public("curve", curve), unnamed, encrypting, other,
		jose.JSONWebKey{KeyID: "symmetric", Key: []byte("0123456789abcdef0123456789abcdef")},
	)
	keys, err := peopleBy(t, config(issuer, t)).issuer.Keys()
	if err != nil || len(keys.Keys) != 1 || keys.Keys[0].KeyID != "good" {
		t.Errorf("%v, %v", keys, err)
	}
}

func TestAnIssuerThatCannotBeReadNamesNobody(t *testing.T) {
	key := public("rsa", newRSA(t, rsaBits))
	for name, change := range map[string]func(*TokenConfig, *provider){
		"another name":      func(_ *TokenConfig, issuer *provider) { issuer.name = "https://evil.example.org" },
		"no keys":           func(_ *TokenConfig, issuer *provider) { issuer.keys.Store(&jose.JSONWebKeySet{}) },
		"an error":          func(_ *TokenConfig, issuer *provider) { issuer.broke.Store(true) },
		"unknown authority": func(config *TokenConfig, _ *provider) { config.Issuer.CertificateAuthorityFile = "" },
		"no authority":      func(config *TokenConfig, _ *provider) { config.Issuer.CertificateAuthorityFile = write(t, "none") },
		"a redirect": func(config *TokenConfig, issuer *provider) {
			config.Issuer.URL += "/moved"
			issuer.name = config.Issuer.URL
		},
	} {
		issuer := newProvider(t, key)
		by := config(issuer, t)
		change(&by, issuer)
		read, err := NewIssuer(by.Issuer.URL, by.Issuer.CertificateAuthorityFile, log.NewNoopLogger())
		if err != nil {
			t.Fatal(err)
		}
		if keys, err := read.read(t.Context()); err == nil {
			t.Errorf("%s: %v", name, keys)
		}
	}
	for _, address := range []string{
		"", "http://issuer.example.org", "https://", "https://a@issuer.example.org", "https://issuer.example.org?x", "file:///etc/passwd",
	} {
		if _, err := NewIssuer(address, "", log.NewNoopLogger()); err == nil {
			t.Error(address)
		}
	}
}

func TestKeysChangeWithTheIssuersAndStayWhileItIsAway(t *testing.T) {
	old, renewed := newRSA(t, rsaBits), newRSA(t, rsaBits)
	issuer := newProvider(t, public("old", old))
	by := config(issuer, t)
	found, err := NewIssuer(by.Issuer.URL, by.Issuer.CertificateAuthorityFile, log.NewNoopLogger())
	if err != nil {
		t.Fatal(err)
	}
	issuer.broke.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { found.Follow(ctx); close(done) }()
	if _, err := found.Keys(); err == nil {
		t.Error("there are keys before the issuer was read")
	}
	issuer.broke.Store(false)
	until(t, func() bool { keys, err := found.Keys(); return err == nil && len(keys.Key("old")) == 1 })
	cancel()
	<-done

	issuer.keys.Store(&jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public("new", renewed)}})
	keys, err := found.read(t.Context())
	if err != nil || len(keys.Key("old")) > 0 || len(keys.Key("new")) != 1 {
		t.Errorf("%v, %v", keys, err)
	}
}

func TestATokenConfigIsReadStrictly(t *testing.T) {
	const good = `
issuer: {url: https://issuer.example.org, audience: temporal}
roles: {look: [all], administer: [platform]}
`
	read, err := ReadTokenConfig(write(t, good))
	if err != nil || read.Claims.Username != "sub" || read.Claims.Groups != "groups" || read.Roles.Administer[0] != "platform" {
		t.Errorf("%+v, %v", read, err)
	}
	if _, err := ReadTokenConfig("../../examples/compose/temporal-oidc.yaml"); err != nil {
		t.Error(err)
	}
	for name, content := range map[string]string{
		"nothing":        "",
		"no audience":    "issuer: {url: https://issuer.example.org}\nroles: {look: [all]}",
		"no roles":       "issuer: {url: https://issuer.example.org, audience: temporal}",
		"an empty group": "issuer: {url: https://issuer.example.org, audience: temporal}\nroles: {look: ['']}",
		"unknown role":   good + "\n  everything: [x]",
		"unknown field":  good + "\nalgorithms: [none]",
	} {
		if read, err := ReadTokenConfig(write(t, content)); err == nil {
			t.Errorf("%s: %+v", name, read)
		}
	}
}

func withToken(t *testing.T, role Role, name, header string) *authorization.AuthInfo {
	t.Helper()
	info := certified(t, pkix.RDNSequence{organization(string(role)), commonName(name)})
	info.AuthToken = header
	return info
}

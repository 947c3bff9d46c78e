package authorization

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"

	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc/credentials"
)

var oidUnit = asn1.ObjectIdentifier{2, 5, 4, 11}

func attribute(kind asn1.ObjectIdentifier, value string) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: kind, Value: value}
}

func organization(value string) []pkix.AttributeTypeAndValue {
	return []pkix.AttributeTypeAndValue{attribute(oidOrganization, value)}
}

func commonName(value string) []pkix.AttributeTypeAndValue {
	return []pkix.AttributeTypeAndValue{attribute(oidCommonName, value)}
}

// certified returns a real certificate with this subject, as a TLS server sees it after the verification.
func certified(t *testing.T, subject pkix.RDNSequence) *authorization.AuthInfo {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := asn1.Marshal(subject)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: raw}
	encoded, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{certificate}}}
	return &authorization.AuthInfo{TLSSubject: &certificate.Subject, TLSConnection: &credentials.TLSInfo{State: state}}
}

func TestAClientIsNamedByItsCertificate(t *testing.T) {
	for _, test := range []struct {
		organization, name string
		want               Identity
	}{
		{"gardener.cloud:system:operators", "gardener-controller-manager", Identity{Role: Operators, Name: "gardener-controller-manager"}},
		{"gardener.cloud:system:seeds", "gardener.cloud:system:seed:a", Identity{Seeds, "gardener.cloud:system:seed:a", "seed-a", ""}},
		{
			"gardener.cloud:system:extensions", "gardener.cloud:system:extension:provider-local:seed-1",
			Identity{Extensions, "gardener.cloud:system:extension:provider-local:seed-1", "provider-local-seed-1", "provider-local/seed-1/"},
		},
		{"gardener.cloud:temporal:viewers", "alice", Identity{Role: Viewers, Name: "alice"}},
		{"gardener.cloud:temporal:repairers", "Bob Müller", Identity{Role: Repairers, Name: "Bob Müller"}},
		{"gardener.cloud:temporal:admins", "carol@example.org", Identity{Role: Admins, Name: "carol@example.org"}},
	} {
		claims, err := ClaimMapper{}.GetClaims(certified(t, pkix.RDNSequence{organization(test.organization), commonName(test.name)}))
		if err != nil {
			t.Errorf("%s, %s: %v", test.organization, test.name, err)
		} else if claims.Extensions != test.want || claims.System != authorization.RoleUndefined || len(claims.Namespaces) > 0 {
			t.Errorf("%s, %s: %+v", test.organization, test.name, claims)
		}
	}
}

func TestACertificateWithAnotherSubjectNamesNoClient(t *testing.T) {
	seeds, seedA := organization("gardener.cloud:system:seeds"), commonName("gardener.cloud:system:seed:a")
	extensions := organization("gardener.cloud:system:extensions")
	for name, subject := range map[string]pkix.RDNSequence{
		"nothing":                    {},
		"no organization":            {seedA},
		"no common name":             {seeds},
		"unknown organization":       {organization("system:masters"), commonName("admin")},
		"organization of a server":   {organization("temporal"), commonName("internal")},
		"two common names":           {seeds, seedA, commonName("gardener.cloud:system:seed:b")},
		"two organizations":          {seeds, organization("gardener.cloud:temporal:admins"), seedA},
		"one part of two attributes": {append(organization("gardener.cloud:system:seeds"), attribute(oidCommonName, "gardener.cloud:system:seed:a"))},
		"an organizational unit":     {seeds, {attribute(oidUnit, "x")}, seedA},
		"control characters":         {organization("gardener.cloud:temporal:repairers"), commonName("alice\nbob")},
		"a long name":                {organization("gardener.cloud:temporal:repairers"), commonName(string(make([]byte, 65)))},
		"name of a person":           {seeds, commonName("alice")},
		"seed without name":          {seeds, commonName("gardener.cloud:system:seed:")},
		"seed with a slash":          {seeds, commonName("gardener.cloud:system:seed:a/b")},
		"seed in capitals":           {seeds, commonName("gardener.cloud:system:seed:A")},
		"extension without seed":     {extensions, commonName("gardener.cloud:system:extension:provider-local")},
		"extension without name":     {extensions, commonName("gardener.cloud:system:extension::seed-1")},
		"extension with three parts": {extensions, commonName("gardener.cloud:system:extension:a:b:c")},
		"extension as a seed":        {extensions, seedA},
		"extension with seed's queue": {
			extensions, commonName("gardener.cloud:system:extension:seed:b"),
		},
		"extension with another seed's queue": {
			extensions, commonName("gardener.cloud:system:extension:seed-b:c"),
		},
	} {
		if claims, err := (ClaimMapper{}).GetClaims(certified(t, subject)); err == nil {
			t.Errorf("%s: %+v", name, claims)
		}
	}
}

func TestAClientWithoutVerifiedCertificateHasNoClaims(t *testing.T) {
	for name, info := range map[string]*authorization.AuthInfo{
		"a token alone":              {AuthToken: "Bearer x"},
		"a certificate not verified": {TLSConnection: &credentials.TLSInfo{}, TLSSubject: &pkix.Name{CommonName: "x"}},
	} {
		if _, err := (ClaimMapper{}).GetClaims(info); err == nil {
			t.Error(name)
		}
	}
}

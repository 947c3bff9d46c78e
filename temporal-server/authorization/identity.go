// Package authorization decides what a client of Temporal may do, by the subject of its certificate, or by a person's
// token that a gateway passes on.
//
// A ClaimMapper reads subject and token, and an Authorizer decides about each call. Two interceptors follow: Caller
// writes the client's name into requests, and Tokens binds task tokens to the client that polled them.
package authorization

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"go.temporal.io/server/common/authorization"
)

// Role is the organization of a client's certificate.
type Role string

const (
	// Operators are the processes of the garden side.
	Operators Role = "gardener.cloud:system:operators"
	// Seeds are gardenlets.
	Seeds Role = "gardener.cloud:system:seeds"
	// Extensions are extension controllers, each in one seed.
	Extensions Role = "gardener.cloud:system:extensions"
	// Viewers are people who may read workflows.
	Viewers Role = "gardener.cloud:temporal:viewers"
	// Repairers are people who may also send updates to workflows.
	Repairers Role = "gardener.cloud:temporal:repairers"
	// Admins are people who may do everything in our namespaces.
	Admins Role = "gardener.cloud:temporal:admins"
	// Gateways pass on the tokens of people, and may do nothing themselves.
	Gateways Role = "gardener.cloud:temporal:gateways"

	seedPrefix      = "gardener.cloud:system:seed:"
	extensionPrefix = "gardener.cloud:system:extension:"
	seedQueue       = "seed"
	maxNameLength   = 64
)

var (
	oidCommonName   = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization = asn1.ObjectIdentifier{2, 5, 4, 10}

	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

	people = map[Role]bool{Viewers: true, Repairers: true, Admins: true}
)

// Identity is a client as named by its certificate or by a person's token.
type Identity struct {
	Role Role
	// Name is the certificate's common name, or a name in a claim of the token.
	Name string
	// Queue is the only task queue that a gardenlet or an extension may use; empty for other roles.
	Queue string
	// Prefix is the prefix of the IDs of an extension's workflows; empty for other roles.
	Prefix string
}

func (i Identity) String() string {
	return fmt.Sprintf("%s (%s)", i.Name, i.Role)
}

// ClaimMapper maps a client certificate to an Identity, and a gateway's certificate with a token to a person's Identity.
type ClaimMapper struct {
	// People reads tokens; nil: each token is refused.
	People *People
}

// tokenRefused replaces the Identity in claims: the Authorizer then refuses the call with this reason, and logs it.
type tokenRefused string

// GetClaims maps a connection to claims. The certificate's subject must be exactly one organization and one common name,
// in a form that a role allows.
//
// A call has one identity. So a token with another certificate than a gateway's is refused, not ignored.
func (m ClaimMapper) GetClaims(info *authorization.AuthInfo) (*authorization.Claims, error) {
	certificate := authorization.PeerCert(info.TLSConnection)
	if certificate == nil {
		return nil, errors.New("the client has no verified certificate")
	}
	identity, err := identityOf(certificate)
	if err != nil {
		return nil, fmt.Errorf("client certificate with subject %q: %w", certificate.Subject, err)
	}
	if info.AuthToken != "" {
		person, err := m.personOf(info.AuthToken, identity)
		if err != nil {
			return claimsOf(identity, tokenRefused(err.Error())), nil
		}
		identity = person
	}
	return claimsOf(identity, identity), nil
}

func claimsOf(identity Identity, extensions any) *authorization.Claims {
	return &authorization.Claims{Subject: identity.Name, AuthType: string(identity.Role), Extensions: extensions}
}

func (m ClaimMapper) personOf(header string, client Identity) (Identity, error) {
	switch {
	case client.Role != Gateways:
		return Identity{}, errors.New("a token counts with the certificate of a gateway alone")
	case m.People == nil:
		return Identity{}, errors.New("this server knows no issuer of tokens")
	default:
		return m.People.identityOf(header)
	}
}

func identityOf(certificate *x509.Certificate) (Identity, error) {
	organization, name, err := subjectOf(certificate.RawSubject)
	if err != nil {
		return Identity{}, err
	}
	identity := Identity{Role: Role(organization), Name: name}
	switch {
	case identity.Role == Operators || identity.Role == Gateways || people[identity.Role]:
		return identity, nil
	case identity.Role == Seeds:
		seed, isSeed := strings.CutPrefix(name, seedPrefix)
		if !isSeed || !objectName.MatchString(seed) {
			return Identity{}, fmt.Errorf("the common name must be %s<seed>", seedPrefix)
		}
		identity.Queue = seedQueue + "-" + seed
		return identity, nil
	case identity.Role == Extensions:
		rest, _ := strings.CutPrefix(name, extensionPrefix)
		extension, seed, _ := strings.Cut(rest, ":")
		if rest == name || !objectName.MatchString(extension) || !objectName.MatchString(seed) {
			return Identity{}, fmt.Errorf("the common name must be %s<extension>:<seed>", extensionPrefix)
		}
		if extension == seedQueue || strings.HasPrefix(extension, seedQueue+"-") {
			return Identity{}, fmt.Errorf("an extension named %q would have the task queue of a gardenlet", extension)
		}
		identity.Queue, identity.Prefix = extension+"-"+seed, extension+"/"+seed+"/"
		return identity, nil
	default:
		return Identity{}, errors.New("no role is known for the organization")
	}
}

// subjectOf parses the encoded subject itself, because pkix.Name keeps only the last of several common names, and does
// not keep their order.
func subjectOf(encoded []byte) (organization, name string, err error) {
	var subject pkix.RDNSequence
	if rest, err := asn1.Unmarshal(encoded, &subject); err != nil || len(rest) > 0 {
		return "", "", errors.New("the subject cannot be read")
	}
	for _, attributes := range subject {
		if len(attributes) != 1 {
			return "", "", errors.New("the subject has a part of several attributes")
		}
		value, isText := attributes[0].Value.(string)
		if !isText || value == "" || len(value) > maxNameLength || strings.ContainsFunc(value, unprintable) {
			return "", "", errors.New("the subject has an attribute that is no plain text of up to 64 bytes")
		}
		switch kind := attributes[0].Type; {
		case kind.Equal(oidOrganization) && organization == "":
			organization = value
		case kind.Equal(oidCommonName) && name == "":
			name = value
		default:
			return "", "", errors.New("the subject has more than one organization and one common name")
		}
	}
	if organization == "" || name == "" {
		return "", "", errors.New("the subject lacks an organization or a common name")
	}
	return organization, name, nil
}

func unprintable(r rune) bool {
	return !unicode.IsPrint(r)
}

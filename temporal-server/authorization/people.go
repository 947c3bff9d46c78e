package authorization

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.temporal.io/server/common/log"
	"gopkg.in/yaml.v3"
)

const (
	bearer        = "bearer"
	tokenBytes    = 16 << 10
	maxUserLength = 255
	clockSkew     = 10 * time.Second
	emailClaim    = "email"
)

// algorithms are the allowed signature algorithms of tokens. All are asymmetric, so a server that verifies tokens cannot
// make them.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256}

// TokenConfig names the issuer whose tokens identify people, and the groups that have a role.
type TokenConfig struct {
	Issuer struct {
		// URL is the issuer's name, and the base URL of its discovery document.
		URL string `yaml:"url"`
		// Audience must be among the audiences of a token.
		Audience string `yaml:"audience"`
		// CertificateAuthorityFile is a PEM file with the authorities of the issuer's server; empty: the machine's.
		CertificateAuthorityFile string `yaml:"certificateAuthorityFile"`
	} `yaml:"issuer"`
	Claims struct {
		// Username is the claim with a person's name; "sub" if empty. If it is "email", the address must be verified.
		Username string `yaml:"username"`
		// Groups is the claim with a person's groups, a text or a list of texts; "groups" if empty.
		Groups string `yaml:"groups"`
	} `yaml:"claims"`
	// Roles are the groups that have each role. A member of groups with several roles has the role with most rights.
	Roles struct {
		Look       []string `yaml:"look"`
		Repair     []string `yaml:"repair"`
		Administer []string `yaml:"administer"`
	} `yaml:"roles"`
}

// ReadTokenConfig reads a TokenConfig from a YAML file; an unknown field is an error.
func ReadTokenConfig(path string) (TokenConfig, error) {
	var config TokenConfig
	content, err := os.ReadFile(path)
	if err != nil {
		return config, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return config, fmt.Errorf("%s: %w", path, err)
	}
	if config.Issuer.Audience == "" {
		return config, fmt.Errorf("%s: issuer.audience must be given: a token for another service would count", path)
	}
	groups := slices.Concat(config.Roles.Look, config.Roles.Repair, config.Roles.Administer)
	if len(groups) == 0 || slices.Contains(groups, "") {
		return config, fmt.Errorf("%s: roles must name groups by look, repair or administer, and none may be empty", path)
	}
	if config.Claims.Username == "" {
		config.Claims.Username = "sub"
	}
	if config.Claims.Groups == "" {
		config.Claims.Groups = "groups"
	}
	return config, nil
}

// People identifies people by their tokens.
type People struct {
	config TokenConfig
	issuer *Issuer
}

// NewPeople returns a People, which reads the issuer's keys until the context is done.
func NewPeople(ctx context.Context, config TokenConfig, logger log.Logger) (*People, error) {
	issuer, err := NewIssuer(config.Issuer.URL, config.Issuer.CertificateAuthorityFile, logger)
	if err != nil {
		return nil, err
	}
	go issuer.Follow(ctx)
	return &People{config, issuer}, nil
}

// identityOf returns the person of a token. Its errors reveal nothing of the token but the name of the wrong claim.
func (p *People) identityOf(header string) (Identity, error) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, bearer) {
		return Identity{}, errors.New("the authorization header holds no bearer token")
	}
	claims, err := p.verified(token)
	if err != nil {
		return Identity{}, err
	}
	name, _ := claims[p.config.Claims.Username].(string)
	if name == "" || len(name) > maxUserLength || strings.ContainsFunc(name, unprintable) {
		return Identity{}, fmt.Errorf("claim %q of the token is no plain text of up to %d bytes", p.config.Claims.Username, maxUserLength)
	}
	if strings.HasPrefix(name, "gardener.cloud:") || strings.HasPrefix(name, "system:") {
		return Identity{}, fmt.Errorf("claim %q of the token has a name of machines", p.config.Claims.Username)
	}
	if p.config.Claims.Username == emailClaim && claims["email_verified"] != true {
		return Identity{}, errors.New("the issuer has not verified the token's email address")
	}
	role, found := p.roleOf(textsOf(claims[p.config.Claims.Groups]))
	if !found {
		return Identity{}, fmt.Errorf("no group in claim %q of the token has a role", p.config.Claims.Groups)
	}
	return Identity{Role: role, Name: name}, nil
}

func (p *People) verified(token string) (map[string]any, error) {
	if len(token) > tokenBytes {
		return nil, fmt.Errorf("the token has more than %d bytes", tokenBytes)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, fmt.Errorf("the token is no JSON Web Token that is signed by %v", algorithms)
	}
	keys, err := p.issuer.Keys()
	if err != nil {
		return nil, err
	}
	var standard jwt.Claims
	var all map[string]any
	if err := parsed.Claims(keys, &standard, &all); err != nil {
		return nil, errors.New("the token is not signed by a key of the issuer")
	}
	expected := jwt.Expected{Issuer: p.config.Issuer.URL, AnyAudience: jwt.Audience{p.config.Issuer.Audience}}
	if standard.Expiry == nil {
		return nil, errors.New("the token does not say when it expires")
	}
	switch err := standard.ValidateWithLeeway(expected, clockSkew); {
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return nil, errors.New("the token is of another issuer")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return nil, errors.New("the token is for another audience")
	case errors.Is(err, jwt.ErrExpired):
		return nil, errors.New("the token has expired")
	case err != nil:
		return nil, errors.New("the token is not valid yet")
	}
	return all, nil
}

func (p *People) roleOf(groups []string) (Role, bool) {
	for _, each := range []struct {
		role   Role
		groups []string
	}{
		{Admins, p.config.Roles.Administer}, {Repairers, p.config.Roles.Repair}, {Viewers, p.config.Roles.Look},
	} {
		if slices.ContainsFunc(groups, func(group string) bool { return slices.Contains(each.groups, group) }) {
			return each.role, true
		}
	}
	return "", false
}

func textsOf(claim any) []string {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		var texts []string
		for _, each := range claim {
			if text, isText := each.(string); isText {
				texts = append(texts, text)
			}
		}
		return texts
	default:
		return nil
	}
}

package main

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var (
	metadata  = reflect.TypeFor[metav1.ObjectMeta]()
	marshaler = reflect.TypeFor[json.Marshaler]()
	anything  = reflect.TypeFor[runtime.RawExtension]()
)

// printFields prints the paths of all fields of all kinds of Gardener, by group, version and kind. A path that ends in
// ".**" allows any object below it.
func printFields() error {
	found := map[string][]string{}
	for kind, of := range scheme.AllKnownTypes() {
		if !strings.HasSuffix(kind.Group, "gardener.cloud") {
			continue
		}
		var paths []string
		walk(of, "", nil, func(path string) { paths = append(paths, path) })
		slices.Sort(paths)
		found[kind.Group+"/"+kind.Version+" "+kind.Kind] = slices.Compact(paths)
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func walk(of reflect.Type, path string, above []reflect.Type, add func(string)) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == metadata && path == "metadata": // Kubernetes' own
	case of == anything:
		add(path + ".**")
	case of.Implements(marshaler) || reflect.PointerTo(of).Implements(marshaler):
		// Marshals itself, as times and quantities do.
	case of.Kind() == reflect.Slice || of.Kind() == reflect.Array:
		walk(of.Elem(), path+"[]", above, add)
	case of.Kind() == reflect.Map:
		walk(of.Elem(), path+".*", above, add)
	case of.Kind() == reflect.Struct && slices.Contains(above, of): // a kind that contains itself
		add(path + ".**")
	case of.Kind() == reflect.Struct:
		for index := range of.NumField() {
			field := of.Field(index)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "-" || !field.IsExported():
			case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
				walk(field.Type, path, append(above, of), add)
			default:
				below := strings.TrimPrefix(path+"."+name, ".")
				add(below)
				walk(field.Type, below, append(above, of), add)
			}
		}
	}
}

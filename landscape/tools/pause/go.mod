module gardener/landscape/tools/pause

go 1.26.8

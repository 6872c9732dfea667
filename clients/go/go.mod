module example.com/palisade/clients/go

go 1.19
